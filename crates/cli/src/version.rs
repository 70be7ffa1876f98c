//! `tandem --version`

use tandem_engine_llama::build;

/// The version of this binary.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Version, engine, CPU features and devices, one per line.
pub fn text() -> String {
    let devices = build::devices();
    let devices = if devices.is_empty() {
        "none".to_owned()
    } else {
        devices.join("; ")
    };
    format!(
        "tandem {VERSION}\nengine   {}\nbackends {}\nCPU      {}\ndevices  {devices}",
        build::ENGINE_NAME,
        backends().join(", "),
        build::cpu_features(),
    )
}

/// What the engine was built for.
fn backends() -> Vec<&'static str> {
    let metal = cfg!(feature = "metal") || cfg!(all(target_os = "macos", target_arch = "aarch64"));
    [
        ("CPU", true),
        ("CUDA", cfg!(feature = "cuda")),
        ("Metal", metal),
        ("Vulkan", cfg!(feature = "vulkan")),
    ]
    .into_iter()
    .filter_map(|(name, built)| built.then_some(name))
    .collect()
}
