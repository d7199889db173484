//! Builds the logger in C: it is variadic, and stable Rust cannot define a variadic function.

fn main() {
    println!("cargo::rerun-if-changed=src/logger.c");
    cc::Build::new().file("src/logger.c").std("c11").warnings(true).compile("railweave_nccl_host_logger");
}
