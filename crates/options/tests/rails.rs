//! The lists of rails: the precedence of their variables, and two variables that make one list.

use railweave_options::{Options, RailFilter, Source};

type Variables<'a> = &'a [(&'a str, &'a str)];

fn good(variables: Variables<'_>) -> Options {
    let read = Options::from_variables(variables.iter().copied());
    let (options, warnings) = read.unwrap_or_else(|errors| panic!("{variables:?}: {errors}"));
    assert_eq!(warnings, [], "{variables:?}");
    options
}

/// Reads `variables`, which must cause errors; returns their text.
fn bad(variables: Variables<'_>) -> String {
    Options::from_variables(variables.iter().copied()).expect_err("the value should be refused").to_string()
}

#[test]
fn rails_on_rdma_and_on_tcp_have_lists_of_their_own() {
    let nccl = [("NCCL_SOCKET_IFNAME", "eth"), ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1")];
    let options = good(&nccl);
    assert_eq!(options.rails.source, Source::Variable("NCCL_SOCKET_IFNAME"));
    assert_eq!(options.rdma_rails.source, Source::Variable("NCCL_IB_HCA"));

    let seeds = [nccl.as_slice(), &[("MPIB_HCA_SOUT", "mlx5_3"), ("MPIB_HCA_SUP", "mlx5_1:2")]].concat();
    let rails = good(&seeds).rdma_rails;
    assert_eq!(rails.source, Source::Variables("MPIB_HCA_SOUT", "MPIB_HCA_SUP"));
    assert_eq!(rails.value, Some(RailFilter::parse("=mlx5_3+mlx5_1:2").unwrap()));
    for (given, missing) in [("MPIB_HCA_SOUT", "MPIB_HCA_SUP"), ("MPIB_HCA_SUP", "MPIB_HCA_SOUT")] {
        let expected = format!(
            "{missing}: \"\" is not set, although {given} is, and only both together name the rails; allowed: \
             name[:port] of one device; try {missing}=mlx5_0, or unset {given}"
        );
        assert_eq!(bad(&[(given, "mlx5_3")]), expected);
        let wins = good(&[(given, "mlx5_3"), ("RAILWEAVE_RAILS", "mlx5_1+mlx5_2")]);
        assert_eq!(wins.rdma_rails.value, Some(RailFilter::parse("mlx5_1+mlx5_2").unwrap()));
    }

    let both = [seeds.as_slice(), &[("RAILWEAVE_RAILS", "10.0.0.0/8")]].concat();
    assert_eq!(good(&both).rails.source, Source::Variable("RAILWEAVE_RAILS"));
    assert_eq!(good(&both).rdma_rails.source, Source::Variable("RAILWEAVE_RAILS"));
    let apart = [both.as_slice(), &[("RAILWEAVE_RDMA_RAILS", "mlx5_7")]].concat();
    assert_eq!(good(&apart).rails.source, Source::Variable("RAILWEAVE_RAILS"));
    assert_eq!(good(&apart).rdma_rails.source, Source::Variable("RAILWEAVE_RDMA_RAILS"));

    assert_eq!(
        bad(&[("MPIB_HCA_SOUT", "mlx5_3,mlx5_4")]),
        "MPIB_HCA_SOUT: \"mlx5_3,mlx5_4\" names more than one device; allowed: name[:port] of one device; \
         try MPIB_HCA_SOUT=mlx5_0, or set RAILWEAVE_RDMA_RAILS, which wins"
    );
}
