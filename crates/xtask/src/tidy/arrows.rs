//! Which crate may depend on which.

/// A package of the workspace.
#[derive(Debug, Clone)]
pub struct Crate {
    /// `tandem-…`
    pub name: String,
    /// What its manifest lists.
    pub dependencies: Vec<Dependency>,
}

/// One line of a manifest.
#[derive(Debug, Clone)]
pub struct Dependency {
    /// Name of the package.
    pub name: String,
    /// True if only tests use it.
    pub development: bool,
}

impl Crate {
    /// The name without `tandem-`.
    pub fn short(&self) -> &str {
        short(&self.name)
    }
}

/// What one crate may depend on, of ours.
struct Rule {
    name: &'static str,
    /// For everything.
    normal: &'static [&'static str],
    /// For its tests, besides.
    development: &'static [&'static str],
}

/// The drawing in `ARCHITECTURE.md` as a table. `cli` with `bench`, and `xtask` with
/// what makes and judges the small models, `corpus` and `evaluation`, stand on top.
const RULES: &[Rule] = &[
    rule("handoff", &[], &[]),
    rule("testkit", &[], &[]),
    rule("proto", &["handoff"], &[]),
    rule("api", &["proto"], &[]),
    rule("sched", &["handoff", "proto"], &[]),
    rule("engine", &["handoff", "proto"], &[]),
    rule("prefix-cache", &["handoff"], &["engine", "testkit"]),
    rule("cluster", &[], &[]),
    rule("engine-llama", &["handoff", "engine"], &["testkit"]),
    rule(
        "node",
        &["handoff", "prefix-cache", "proto", "engine", "cluster"],
        &["testkit"],
    ),
    rule(
        "coordinator",
        &["handoff", "proto", "sched", "api", "cluster"],
        &[],
    ),
    rule("grading", &["api"], &[]),
    rule("gradebook", &["grading", "api"], &[]),
    rule("corpus", &["grading"], &[]),
    rule(
        "evaluation",
        &["corpus", "grading", "proto", "engine", "engine-llama"],
        &[],
    ),
    rule(
        "xtask",
        &[
            "handoff",
            "proto",
            "engine",
            "engine-llama",
            "grading",
            "corpus",
            "evaluation",
            "testkit",
        ],
        &[],
    ),
    rule(
        "bench",
        &[
            "handoff",
            "proto",
            "engine",
            "cluster",
            "engine-llama",
            "node",
            "coordinator",
        ],
        &[],
    ),
    rule(
        "cli",
        &[
            "bench",
            "handoff",
            "api",
            "testkit",
            "proto",
            "sched",
            "engine",
            "cluster",
            "engine-llama",
            "node",
            "coordinator",
            "grading",
            "gradebook",
        ],
        &[],
    ),
];

/// Crates that do no I/O, ask no clock, draw no random number and start no task.
pub const PURE: &[&str] = &["handoff", "api", "proto", "sched"];

/// The one crate that may contain `unsafe`, and the only one that knows llama.cpp.
pub const UNSAFE: &str = "engine-llama";

/// Packages that bring sockets, tasks or random numbers.
const IMPURE: &[&str] = &[
    "tokio",
    "tokio-util",
    "tokio-stream",
    "futures-util",
    "axum",
    "reqwest",
    "rand",
    "rand_chacha",
    "getrandom",
];

/// Packages that bring sockets and tasks.
const ASYNC: &[&str] = &["tokio", "tokio-util", "tokio-stream", "axum", "reqwest"];

const fn rule(
    name: &'static str,
    normal: &'static [&'static str],
    development: &'static [&'static str],
) -> Rule {
    Rule {
        name,
        normal,
        development,
    }
}

fn short(name: &str) -> &str {
    name.strip_prefix("tandem-").unwrap_or(name)
}

/// Every arrow that is not drawn.
pub fn check(crates: &[Crate]) -> Vec<String> {
    crates.iter().flat_map(check_crate).collect()
}

fn check_crate(of: &Crate) -> Vec<String> {
    let Some(rule) = RULES.iter().find(|r| r.name == of.short()) else {
        return vec![format!(
            "crate `{}` is not in the table: draw it in ARCHITECTURE.md and add it to {}",
            of.name,
            file!()
        )];
    };
    of.dependencies
        .iter()
        .filter_map(|d| check_dependency(rule, d))
        .collect()
}

fn check_dependency(rule: &Rule, dependency: &Dependency) -> Option<String> {
    let (from, to) = (rule.name, dependency.name.as_str());
    let ours = to.starts_with("tandem-");
    let allowed = rule.normal.contains(&short(to))
        || (dependency.development && rule.development.contains(&short(to)));
    if ours && !allowed {
        return Some(format!(
            "crates/{from}/Cargo.toml: `{from}` must not depend on `{}` (ARCHITECTURE.md, layers); \
             move the code to where the arrow may point",
            short(to)
        ));
    }
    if dependency.development {
        return None;
    }
    if PURE.contains(&from) && IMPURE.contains(&to) {
        return Some(format!(
            "crates/{from}/Cargo.toml: `{from}` is pure and must not depend on `{to}`"
        ));
    }
    if matches!(from, "engine" | "engine-llama") && ASYNC.contains(&to) {
        return Some(format!(
            "crates/{from}/Cargo.toml: engines are synchronous; `{from}` must not depend on `{to}`"
        ));
    }
    if to.starts_with("llama-cpp") && from != UNSAFE {
        return Some(format!(
            "crates/{from}/Cargo.toml: only `{UNSAFE}` knows llama.cpp; `{from}` must not depend on `{to}`"
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(from: &str, to: &str, development: bool) -> Vec<String> {
        check(&[Crate {
            name: format!("tandem-{from}"),
            dependencies: vec![Dependency {
                name: to.to_owned(),
                development,
            }],
        }])
    }

    #[test]
    fn arrows_that_are_drawn_pass() {
        for (from, to, development) in [
            ("sched", "tandem-proto", false),
            ("node", "tandem-engine", false),
            ("engine-llama", "tandem-testkit", true),
            ("cli", "tandem-grading", false),
            ("handoff", "serde", false),
            ("handoff", "rand", true),
            ("engine-llama", "llama-cpp-2", false),
            ("testkit", "llama-cpp-2", true),
            ("node", "tokio", false),
        ] {
            assert_eq!(
                found(from, to, development),
                Vec::<String>::new(),
                "{from} -> {to}"
            );
        }
    }

    #[test]
    fn arrows_that_are_not_drawn_are_named() {
        for (from, to, development) in [
            ("handoff", "tandem-proto", false),
            ("node", "tandem-engine-llama", false),
            ("node", "tandem-engine-llama", true),
            ("engine-llama", "tandem-testkit", false),
            ("grading", "tandem-handoff", false),
            ("sched", "tokio", false),
            ("proto", "rand", false),
            ("engine", "reqwest", false),
            ("node", "llama-cpp-2", false),
            ("unheard-of", "serde", false),
        ] {
            let found = found(from, to, development);
            assert_eq!(found.len(), 1, "{from} -> {to}: {found:?}");
            assert!(found[0].contains(from), "{found:?}");
        }
    }

    #[test]
    fn every_rule_names_crates_of_the_table() {
        for rule in RULES {
            for name in rule.normal.iter().chain(rule.development) {
                assert!(RULES.iter().any(|r| r.name == *name), "{name}");
            }
        }
    }
}
