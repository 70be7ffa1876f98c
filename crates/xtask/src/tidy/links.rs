//! Links between the documents of a checkout.

use std::path::Path;

/// Relative links in a Markdown file at `path`, below `root`, that lead to no file or folder. Links
/// inside fenced code are none.
pub fn check(root: &Path, path: &Path, text: &str) -> Vec<String> {
    let folder = root.join(path.parent().unwrap_or(Path::new("")));
    let mut found = Vec::new();
    let mut fenced = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        let broken = targets(line).filter(|target| !folder.join(target).exists());
        found.extend(broken.map(|target| {
            format!(
                "{}:{number}: the link to `{target}` leads to nothing: correct it or write the file",
                path.display()
            )
        }));
    }
    found
}

/// The files to which the links of a line lead, without those on the web or in the same file.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| {
        let (target, _) = rest.split_once(')')?;
        // A title may follow, and a heading in the file.
        let target = target.split([' ', '#']).next()?;
        (!target.is_empty() && !target.contains(':')).then_some(target)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_files_are_told_from_others() {
        for (line, expected) in [
            ("no link (at) [all]", vec![]),
            ("[a](b.md) and ![c](d/e.svg)", vec!["b.md", "d/e.svg"]),
            ("[a](../b.md#heading \"title\")", vec!["../b.md"]),
            ("[a](#heading)", vec![]),
            ("[a](https://example.org/b.md)", vec![]),
            ("[a](mailto:b@example.org)", vec![]),
            ("[a](not closed", vec![]),
        ] {
            assert_eq!(targets(line).collect::<Vec<_>>(), expected, "{line}");
        }
    }
}
