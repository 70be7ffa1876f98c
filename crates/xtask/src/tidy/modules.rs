//! Import cycles between the modules of a crate.
//!
//! Modules that lie in one module are looked at together, each with all that is inside it: an arrow goes from one to another
//! if anything in the one names anything in the other. These arrows must have an order. What a module and the one
//! around it name of each other does not count. A name that a module hands on (`pub use`) is that of where it stands.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context;
use syn::visit::{self, Visit};

/// A module by the names from the crate on; the crate itself has none.
type Name = Vec<String>;

/// One module.
#[derive(Default)]
struct Module {
    /// Where it is written.
    file: PathBuf,
    /// What its `use` lines name, under the name that they give it.
    handed_on: BTreeMap<String, Name>,
    /// What it names in its own crate, with the line.
    named: Vec<(Name, usize)>,
}

/// The modules of a crate.
type Modules = BTreeMap<Name, Module>;

/// That one module names something of another one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Witness {
    file: PathBuf,
    line: usize,
    named: String,
}

/// Violations in the sources of a crate below `folder`.
///
/// # Errors
/// If a file cannot be read, or is no Rust.
pub fn check(krate: &str, folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut modules = Modules::new();
    for root in ["lib.rs", "main.rs"] {
        let file = folder.join("src").join(root);
        if file.exists() {
            read(&mut modules, Vec::new(), &file)?;
            break;
        }
    }
    let mut found = Vec::new();
    let holders: BTreeSet<Name> = modules.keys().filter_map(|name| around(name)).collect();
    for holder in holders {
        let shown = [&[krate.to_owned()], &holder[..]].concat().join("::");
        if let Some(cycle) = cycle(&arrows(&modules, &holder)) {
            found.push(told(&shown, folder, &cycle));
        }
    }
    Ok(found)
}

fn told(holder: &str, folder: &Path, cycle: &[(String, Witness)]) -> String {
    let each = cycle.iter().map(|(from, witness)| {
        let file = witness.file.strip_prefix(folder).unwrap_or(&witness.file);
        format!(
            "`{from}` names `{}` ({}:{})",
            witness.named,
            file.display(),
            witness.line
        )
    });
    let each: Vec<String> = each.collect();
    format!(
        "modules of `{holder}` form a cycle: {}; move what both need below both",
        each.join(", ")
    )
}

/// The module around one; `None` of the crate.
fn around(name: &[String]) -> Option<Name> {
    name.split_last().map(|(_, around)| around.to_vec())
}

/// Reads a module and those that lie in it.
fn read(modules: &mut Modules, name: Name, file: &Path) -> anyhow::Result<()> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("{shown} cannot be read"))?;
    let parsed = syn::parse_file(&text).with_context(|| format!("{shown} is no Rust"))?;
    let mut reader = Reader {
        name: name.clone(),
        module: Module {
            file: file.to_owned(),
            ..Module::default()
        },
        inside: Vec::new(),
    };
    reader.visit_file(&parsed);
    let inside = std::mem::take(&mut reader.inside);
    modules.insert(name.clone(), reader.module);
    let stem = file.file_stem().unwrap_or_default();
    let is_root = ["lib", "main", "mod"].iter().any(|root| *stem == **root);
    let folder = match is_root {
        true => file.with_file_name(""),
        false => file.with_extension(""),
    };
    for child in inside {
        let beside = folder.join(format!("{child}.rs"));
        let below = folder.join(&child).join("mod.rs");
        let name = [&name[..], &[child]].concat();
        for file in [beside, below].iter().filter(|file| file.exists()) {
            read(modules, name.clone(), file)?;
        }
    }
    Ok(())
}

/// Collects what a file names of its crate. Tests do not count.
struct Reader {
    name: Name,
    module: Module,
    /// Names of modules in files of their own.
    inside: Vec<String>,
}

impl Reader {
    /// What a path in this module stands for, if it begins in this crate.
    fn resolved(&self, path: &[String]) -> Option<Name> {
        let mut at = self.name.clone();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => {
                while rest.get(1).is_some_and(|next| next == "super") {
                    at.pop()?;
                    rest = &rest[1..];
                }
                at.pop()?;
            }
            first if self.inside.iter().any(|child| child == first) => {
                return Some([&at[..], path].concat());
            }
            _ => return None,
        }
        Some([&at[..], &rest[1..]].concat())
    }

    fn names(&mut self, path: &[String], line: usize) -> Option<Name> {
        let named = self.resolved(path)?;
        self.module.named.push((named.clone(), line));
        Some(named)
    }

    fn uses(&mut self, tree: &syn::UseTree, before: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.uses(&path.tree, before);
                before.pop();
            }
            syn::UseTree::Name(name) => self.used(&name.ident, &name.ident, before),
            syn::UseTree::Rename(renamed) => self.used(&renamed.ident, &renamed.rename, before),
            syn::UseTree::Glob(glob) => {
                let line = glob.star_token.spans[0].start().line;
                self.names(before, line);
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.uses(tree, before);
                }
            }
        }
    }

    fn used(&mut self, of: &syn::Ident, under: &syn::Ident, before: &[String]) {
        let mut path = before.to_vec();
        if of != "self" {
            path.push(of.to_string());
        }
        if let Some(named) = self.names(&path, of.span().start().line) {
            self.module.handed_on.insert(under.to_string(), named);
        }
    }
}

/// True for what only tests have.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list().ok();
        let of_cfg = list.filter(|list| list.path.is_ident("cfg"));
        of_cfg.is_some_and(|list| list.tokens.to_string() == "test")
    })
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_file(&mut self, file: &'ast syn::File) {
        // Which modules there are is known before any path is read.
        for item in &file.items {
            if let syn::Item::Mod(module) = item
                && module.content.is_none()
                && !is_test(&module.attrs)
            {
                self.inside.push(module.ident.to_string());
            }
        }
        visit::visit_file(self, file);
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            self.uses(&item.tree, &mut Vec::new());
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let names: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
            let line = path.segments[0].ident.span().start().line;
            self.names(&names, line);
        }
        visit::visit_path(self, path);
    }
}

/// The module in which something stands.
fn place(modules: &Modules, named: &[String]) -> Name {
    let mut named = named.to_vec();
    // A name may be handed on several times, and in a circle only by mistake.
    for _ in 0..8 {
        let within = (0..=named.len()).rev();
        let depth = within
            .into_iter()
            .find(|n| modules.contains_key(&named[..*n]));
        let (module, rest) = named.split_at(depth.unwrap_or(0));
        let of = modules.get(module);
        let next = rest
            .first()
            .and_then(|first| of.and_then(|of| of.handed_on.get(first)))
            .map(|on| [&on[..], &rest[1..]].concat());
        match next {
            Some(next) if next != named => named = next,
            _ => return module.to_vec(),
        }
    }
    Vec::new()
}

/// Who in a module names whom, with a place where.
fn arrows(modules: &Modules, holder: &[String]) -> BTreeMap<String, BTreeMap<String, Witness>> {
    let mut arrows: BTreeMap<String, BTreeMap<String, Witness>> = BTreeMap::new();
    let part = |name: &[String]| {
        let inside = name.strip_prefix(holder);
        inside.and_then(|inside| inside.first().cloned())
    };
    for (name, module) in modules {
        let Some(from) = part(name) else {
            continue;
        };
        for (named, line) in &module.named {
            let Some(to) = part(&place(modules, named)).filter(|to| *to != from) else {
                continue;
            };
            let witness = Witness {
                file: module.file.clone(),
                line: *line,
                named: named.join("::"),
            };
            let of = arrows.entry(from.clone()).or_default();
            of.entry(to).or_insert(witness);
        }
    }
    arrows
}

/// A shortest cycle, if there is one.
fn cycle(arrows: &BTreeMap<String, BTreeMap<String, Witness>>) -> Option<Vec<(String, Witness)>> {
    let cycles = arrows.keys().filter_map(|start| back(arrows, start));
    cycles.min_by_key(Vec::len)
}

/// The shortest way from a module back to it.
fn back(
    arrows: &BTreeMap<String, BTreeMap<String, Witness>>,
    start: &str,
) -> Option<Vec<(String, Witness)>> {
    let mut ways: Vec<Vec<(String, Witness)>> = vec![Vec::new()];
    let mut seen = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            let at = way.last().map_or(start, |(_, last)| &*last.named);
            for (to, witness) in arrows.get(at).into_iter().flatten() {
                // While ways are looked for, a witness names the module that is reached.
                let step = (
                    at.to_owned(),
                    Witness {
                        named: to.clone(),
                        ..witness.clone()
                    },
                );
                let way = [&way[..], &[step]].concat();
                if to == start {
                    return Some(way);
                }
                if seen.insert(to.clone()) {
                    longer.push(way);
                }
            }
        }
        ways = longer;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found in a crate of these files.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = folder.path().join("src").join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        check("planted", folder.path()).unwrap()
    }

    #[test]
    fn cycles_are_found_with_their_lines() {
        for (files, words) in [
            (
                &[
                    ("lib.rs", "mod a;\nmod b;"),
                    ("a.rs", "use crate::b::B;\npub struct A;"),
                    ("b.rs", "pub struct B;\nfn f() { crate::a::A; }"),
                ][..],
                ["src/a.rs:1", "src/b.rs:2"],
            ),
            // By way of a name that the crate hands on, and from inside a module.
            (
                &[
                    ("lib.rs", "mod a;\nmod b;\npub use b::B;"),
                    ("a.rs", "mod inner;\npub use inner::A;"),
                    ("a/inner.rs", "\n\npub struct A(crate::B);"),
                    ("b.rs", "use super::a::A;\npub struct B;"),
                ],
                ["src/a/inner.rs:3", "src/b.rs:1"],
            ),
            // Three, below a module.
            (
                &[
                    ("main.rs", "mod m;"),
                    ("m.rs", "mod a;\nmod b;\nmod c;"),
                    ("m/a.rs", "use super::b::B as Other;"),
                    ("m/b.rs", "use super::{a, c::{self}};\npub struct B;"),
                    ("m/c.rs", "use crate::m::a::*;"),
                ],
                ["`planted::m`", "src/m/a.rs:1"],
            ),
        ] {
            let found = found(files);
            assert_eq!(found.len(), 1, "{found:?}");
            for word in words {
                assert!(found[0].contains(word), "{word}: {found:?}");
            }
        }
    }

    #[test]
    fn what_has_an_order_passes() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\npub struct C;\npub use a::A;"),
            (
                "a.rs",
                "mod inner;\nuse crate::C;\npub struct A;\n#[cfg(test)]\nmod tests { use crate::b::B; }",
            ),
            ("a/inner.rs", "use super::A;\nfn f() { String::new(); }"),
            ("b.rs", "// crate::b::B\nuse crate::A;\npub struct B;"),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
    }
}
