//! Styles and scripts, built into the program. The name of each has a digest of its content, so that browsers may keep it.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::error::PageError;

struct Asset {
    name: &'static str,
    kind: &'static str,
    content: &'static str,
}

const ASSETS: &[Asset] = &[
    Asset {
        name: "tandem.css",
        kind: "text/css; charset=utf-8",
        content: include_str!("../assets/tandem.css"),
    },
    Asset {
        name: "keys.js",
        kind: "text/javascript; charset=utf-8",
        content: include_str!("../assets/keys.js"),
    },
    Asset {
        name: "desk.js",
        kind: "text/javascript; charset=utf-8",
        content: include_str!("../assets/desk.js"),
    },
    Asset {
        name: "rubric.js",
        kind: "text/javascript; charset=utf-8",
        content: include_str!("../assets/rubric.js"),
    },
    Asset {
        name: "live.js",
        kind: "text/javascript; charset=utf-8",
        content: include_str!("../assets/live.js"),
    },
];

/// Paths and contents, by name.
static PATHS: LazyLock<Vec<(String, &'static Asset)>> = LazyLock::new(|| {
    let path = |asset: &'static Asset| {
        let digest = blake3::hash(asset.content.as_bytes()).to_hex();
        (format!("{}-{}", &digest[..12], asset.name), asset)
    };
    ASSETS.iter().map(path).collect()
});

/// The path of an asset, for a template.
pub(crate) fn path(name: &str) -> String {
    let found = PATHS.iter().find(|(_, asset)| asset.name == name);
    let file = found.map_or(name, |(path, _)| path.as_str());
    format!("/grading/assets/{file}")
}

/// Sends an asset.
pub(crate) async fn serve(Path(name): Path<String>) -> Response {
    match PATHS.iter().find(|(path, _)| *path == name) {
        Some((_, asset)) => (
            StatusCode::OK,
            [
                (header::CONTENT_TYPE, asset.kind),
                (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
            ],
            asset.content,
        )
            .into_response(),
        None => PageError::NotFound.into_response(),
    }
}
