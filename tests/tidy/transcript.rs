//! The transcript on the first screen of README.md is of the commands that `packaging/dev.sh run` types.

use crate::tree;

const README: &str = "README.md";
const SCRIPT: &str = "packaging/dev.sh";

/// The commands of the first transcript of a document.
fn typed(markdown: &str) -> Vec<&str> {
    let transcript = markdown.split("```console\n").nth(1).and_then(|rest| rest.split("```").next());
    transcript.unwrap_or_default().lines().filter_map(|line| line.strip_prefix("$ ")).collect()
}

/// The commands that the script shows when it has mounted on `directory`.
fn shown(script: &str, directory: &str) -> Vec<String> {
    let body = script.split("\ndemonstrate() {\n").nth(1).and_then(|rest| rest.split("\n}").next());
    let commands = body.unwrap_or_default().lines().filter_map(|line| line.trim().strip_prefix("show \""));
    let space = format!("{directory}/demo");
    commands.map(|line| line.trim_end_matches('"').replace("$quoted", &space)).collect()
}

#[test]
fn the_readme_shows_what_the_script_does() {
    let (readme, script) =
        (tree::read(README).expect("it is there"), tree::read(SCRIPT).expect("it is there"));
    let typed = typed(&readme);
    let (start, commands) = typed.split_first().expect("a transcript with commands");
    let directory = start.strip_prefix("packaging/dev.sh run ").expect("it starts with the script");
    assert_eq!(
        commands,
        shown(&script, directory),
        "{README} and {SCRIPT} differ: run the script and paste what it prints"
    );
}

#[test]
fn commands_are_found_in_both() {
    assert_eq!(typed("a\n```console\n$ one\nits output\n$ two 2\n```\n$ no\n"), ["one", "two 2"]);
    let script = "f() {\n    show \"no\"\n}\n\ndemonstrate() {\n    x=1\n    show \"dd of=$quoted/a\"\n}\n";
    assert_eq!(shown(script, "/tmp/x"), ["dd of=/tmp/x/demo/a"]);
}
