//! The map of all commands, made from what they say of themselves.

use std::fmt::Write as _;

use clap::Command;

/// Where more is said about a command.
const MORE: [(&str, &str); 12] = [
    ("node", "[README](../README.md#two-machines)"),
    ("serve", "[api.md](api.md)"),
    ("cluster", "[security.md](security.md)"),
    ("run", "[README](../README.md#one-machine)"),
    ("grade", "[grading.md](grading.md)"),
    ("course", "[grading.md](grading.md)"),
    ("doctor", "[engines.md](engines.md)"),
    ("import", "[engines.md](engines.md)"),
    ("plan", "[scheduling.md](scheduling.md)"),
    ("probe", "[scheduling.md](scheduling.md)"),
    ("demo", "[README](../README.md#try-it)"),
    ("bench", "[benchmarks.md](benchmarks.md)"),
];

/// `docs/commands.md`.
pub fn markdown(tandem: &Command) -> String {
    let mut out = String::from(
        "# Commands\n\n\
         Made by `tandem commands`; a test holds it to the binary.\n\
         `tandem COMMAND --help` lists the options of each.\n\n\
         | command | does | more |\n|---|---|---|\n",
    );
    for command in tandem.get_subcommands().filter(|c| !c.is_hide_set()) {
        add(&mut out, "tandem", command, more(command.get_name()));
    }
    out.push_str(
        "\nThe development tasks, `cargo xtask`, are in [CONTRIBUTING](../CONTRIBUTING.md).\n",
    );
    out
}

fn more(name: &str) -> &'static str {
    let found = MORE.iter().find(|(command, _)| *command == name);
    found.map_or("", |(_, more)| more)
}

fn add(out: &mut String, before: &str, command: &Command, more: &str) {
    let name = format!("{before} {}", command.get_name());
    let about = command
        .get_about()
        .map(ToString::to_string)
        .unwrap_or_default();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "| `{name}` | {} | {more} |", about.replace('|', "\\|"));
    for inner in command
        .get_subcommands()
        .filter(|c| !c.is_hide_set() && c.get_name() != "help")
    {
        add(out, &name, inner, more);
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_map_of_commands_is_that_of_this_binary() {
        let made = super::markdown(&crate::Arguments::command());
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");
        let written = std::fs::read_to_string(path).unwrap();
        assert_eq!(made, written, "run `tandem commands > docs/commands.md`");
    }
}
