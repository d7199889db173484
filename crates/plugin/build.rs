//! How the shared library is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The name under which it is installed, so that a second copy under another path is the same library to the loader.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl-net-railweave.so");
    // NCCL calls dlclose after the last communicator. Up to v10 nothing tells the plugin before, so its control thread
    // may still run: the code must stay.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
