//! Grouped receives: several buffers in one request, distinguished by tags.

mod common;

use common::{Buffer, Pair, Random, TWO_RAILS, alone, noise, start, warnings, warnings_with};
use railweave_nccl_host::net::Part;

/// One buffer of a group, with the message for it.
struct Member {
    tag: i32,
    message: Vec<u8>,
    from: Buffer,
    to: Buffer,
}

fn group(pair: &Pair<'_>, random: &mut Random, count: usize) -> Vec<Member> {
    let mut tags: Vec<i32> = (0..count as i32).map(|tag| tag * 1000 - 3).collect();
    random.shuffle(&mut tags);
    let member = |tag| {
        let message = noise(random.next(), [0, 1, 128, 1000, 8192, 70_001, 300_000][random.below(7)]);
        let (from, to) = (pair.outgoing(&message), pair.incoming(message.len() + random.below(300)));
        Member { tag, message, from, to }
    };
    tags.into_iter().map(member).collect()
}

fn parts(group: &[Member]) -> Vec<Part> {
    group.iter().map(|member| member.to.part(member.tag)).collect()
}

fn check(pair: &Pair<'_>, group: Vec<Member>, sizes: &[i32]) {
    for (index, member) in group.into_iter().enumerate() {
        assert_eq!(sizes[index], member.message.len() as i32, "the size of buffer {index}");
        member.to.assert_holds(&member.message);
        pair.release_outgoing(member.from);
        pair.release_incoming(member.to);
    }
}

#[test]
fn groups_of_one_to_eight_are_filled_by_tag_whatever_the_order_of_the_sends() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let mut random = Random::new(1);
        for count in (1..=8).cycle().take(80) {
            let group = group(&pair, &mut random, count);
            let recv = pair.irecv(&parts(&group));
            let mut order: Vec<_> = group.iter().collect();
            random.shuffle(&mut order);
            let sends: Vec<_> =
                order.iter().map(|member| pair.isend(&member.from, member.message.len(), member.tag)).collect();
            let (sent, received) = pair.finish(&sends, &[recv]);
            let expected: Vec<_> = order.iter().map(|member| member.message.len() as i32).collect();
            assert_eq!(sent, expected);
            assert!(received[0][count..].iter().all(|size| *size == -1), "only {count} sizes are written");
            check(&pair, group, &received[0]);
        }
        assert!(warnings().is_empty());
    });
}

#[test]
fn a_group_is_filled_before_the_next_one_even_where_tags_are_alike() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let groups: Vec<_> = (0..6).map(|seed| group(&pair, &mut Random::new(seed), 4)).collect();
        let recvs: Vec<_> = groups.iter().map(|group| pair.irecv(&parts(group))).collect();
        let mut sends = Vec::new();
        for (seed, group) in groups.iter().enumerate() {
            let mut order: Vec<_> = group.iter().collect();
            Random::new(100 + seed as u64).shuffle(&mut order);
            sends.extend(order.iter().map(|member| pair.isend(&member.from, member.message.len(), member.tag)));
        }
        let (_, received) = pair.finish(&sends, &recvs);
        for (group, sizes) in groups.into_iter().zip(received) {
            check(&pair, group, &sizes);
        }
    });
}

#[test]
fn two_buffers_with_one_tag_are_filled_in_their_order() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let messages = [noise(1, 1000), noise(2, 2000)];
        let from = messages.each_ref().map(|message| pair.outgoing(message));
        let to = [pair.incoming(4096), pair.incoming(4096)];
        let recv = pair.irecv(&[to[0].part(5), to[1].part(5)]);
        let sends = [pair.isend(&from[0], 1000, 5), pair.isend(&from[1], 2000, 5)];
        let (_, received) = pair.finish(&sends, &[recv]);
        assert_eq!(received[0][..2], [1000, 2000]);
        to.iter().zip(&messages).for_each(|(to, message)| to.assert_holds(message));
    });
}

#[test]
fn a_send_with_a_tag_that_no_open_buffer_has_gets_no_request_and_disturbs_nothing() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let messages = [noise(1, 9000), noise(2, 500)];
        let from = messages.each_ref().map(|message| pair.outgoing(message));
        let to = [pair.incoming(10_000), pair.incoming(10_000)];
        let recv = pair.irecv(&[to[0].part(1), to[1].part(2)]);
        let second = pair.isend(&from[1], 500, 2);
        // Tags 3 and -1 match no buffer, and that of tag 2 is taken; the slot is not full, so nothing may be received
        // either.
        for tag in [3, 2, -1].into_iter().cycle().take(300) {
            assert!(pair.try_isend(&from[0], 9000, tag).unwrap().is_none());
            assert!(pair.test_recv(&recv).unwrap().is_none());
        }
        let first = pair.isend(&from[0], 9000, 1);
        let (sent, received) = pair.finish(&[first, second], &[recv]);
        assert_eq!((sent, &received[0][..2]), (vec![9000, 500], &[9000, 500][..]));
        to.iter().zip(&messages).for_each(|(to, message)| to.assert_holds(message));
        assert!(warnings().is_empty());
    });
}

#[test]
fn a_message_in_a_group_that_is_too_long_is_truncated_alone() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let message = noise(3, 50_000);
        let (from, to) =
            (pair.outgoing(&message), [pair.incoming(50_000), pair.incoming(20_001), pair.incoming(60_000)]);
        let recv = pair.irecv(&[to[0].part(0), to[1].part(1), to[2].part(2)]);
        let sends = [2, 1, 0].map(|tag| pair.isend(&from, 50_000, tag));
        let (sent, received) = pair.finish(&sends, &[recv]);
        assert_eq!((sent, &received[0][..3]), (vec![50_000, 20_001, 50_000], &[50_000, 20_001, 50_000][..]));
        to[0].assert_holds(&message);
        to[1].assert_holds(&message[..20_001]);
        to[2].assert_holds(&message);
        assert_eq!((warnings().len(), warnings_with(&["was truncated", "50000", "20001"]).len()), (1, 1));
    });
}

#[test]
fn a_group_of_empty_messages_completes() {
    alone(&[TWO_RAILS], || {
        let (_plugin, net) = start();
        let pair = Pair::open(&net, &net, 0);
        let (from, to) = (pair.outgoing(b"x"), pair.incoming(64));
        let recv = pair.irecv(&(0..8).map(|tag| to.part(tag)).collect::<Vec<_>>());
        let sends: Vec<_> = (0..8).rev().map(|tag| pair.isend(&from, 0, tag)).collect();
        let (sent, received) = pair.finish(&sends, &[recv]);
        assert_eq!((sent, received), (vec![0; 8], vec![[0; 8]]));
        to.assert_holds(b"");
        pair.exchange(1, 1000);
    });
}
