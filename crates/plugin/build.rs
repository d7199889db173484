//! Linker arguments of the shared library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The installed name, so that the loader takes a second copy under another path for the same library.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl-net-railweave.so");
    // NCCL calls dlclose after the last communicator. Up to v10 the plugin is not told before, so its control thread
    // may still run: the code must stay.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
