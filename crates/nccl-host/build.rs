//! Builds the variadic logger, which Rust cannot define yet.

fn main() {
    println!("cargo::rerun-if-changed=src/logger.c");
    cc::Build::new().file("src/logger.c").std("c11").warnings(true).compile("railweave_nccl_host_logger");
}
