//! Gives libtidefs.so its name of record, by which programs that were linked with it look for it, and has it stay loaded: a
//! cache that nobody closed has a thread that runs in it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The number grows with each change that breaks a program which was compiled before it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtidefs.so.0");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
