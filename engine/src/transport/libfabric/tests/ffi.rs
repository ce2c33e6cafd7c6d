//! The environment in which libfabric finds the strict provider.

use std::sync::Once;

/// Makes the strict provider, which is built beside the tests, one that libfabric loads. To be called before the library is
/// used for the first time.
pub(super) fn find_strict_provider() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let built = std::env::current_exe().unwrap().with_file_name("libfabric_strict.so");
        assert!(built.exists(), "{} was not built", built.display());
        // Beside the build, so that a run leaves nothing behind; tests in other processes put the same link there.
        let folder = built.with_file_name("libfabric-providers");
        std::fs::create_dir_all(&folder).unwrap();
        let link = folder.join(format!("link-{}", std::process::id()));
        std::os::unix::fs::symlink(&built, &link).unwrap();
        std::fs::rename(&link, folder.join("libstrict-fi.so")).unwrap();
        // SAFETY: nothing of this process that is written in C, and could read the environment meanwhile, runs before libfabric
        // is loaded; what is written in Rust takes the standard library's lock.
        unsafe { std::env::set_var("FI_PROVIDER_PATH", &folder) };
    });
}
