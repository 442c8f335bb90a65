//! What the documents tell people to type: each command is one that the program takes, each request one that the API has,
//! and each link leads somewhere.

use std::fs;
use std::path::{Path, PathBuf};

use bakeoff::cli::Cli;
use clap::{CommandFactory, Parser};
use regex::Regex;
use serde_json::Value;

use super::style::root;

/// README's limit: what it is, one picture, two commands, and where to go on.
const README_MAX: usize = 8 * 1024;

/// The documents for people, with their names.
fn documents() -> Vec<(String, String)> {
    let mut found: Vec<PathBuf> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
        .map(PathBuf::from)
        .to_vec();
    found.push("clients/python/README.md".into());
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap().flatten() {
            let path = folder.join(entry.file_name());
            if entry.path().is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "md") {
                found.push(path);
            }
        }
    }
    let text = |path: PathBuf| {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        (path.display().to_string(), text)
    };
    found.into_iter().map(text).collect()
}

/// The blocks of a language in Markdown.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    let after = text.split(fence.as_str()).skip(1);
    after
        .filter_map(|rest| rest.split("\n```").next())
        .collect()
}

/// The commands of a shell's lines as words, comments and what is redirected left out.
fn commands(block: &str) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    let joined = block.replace("\\\n", " ");
    for line in joined.lines() {
        let (mut word, mut quote, mut depth) = (String::new(), None, 0_u32);
        let mut is_target = false;
        for one in line.chars() {
            match (one, quote) {
                ('\'' | '"', None) if depth == 0 => quote = Some(one),
                (one, Some(open)) if one == open => quote = None,
                ('(' | ')', None) if word.starts_with('$') || depth > 0 => {
                    depth = if one == '(' { depth + 1 } else { depth - 1 };
                    word.push(one);
                }
                ('#', None) if word.is_empty() && depth == 0 => break,
                ('|' | '&' | ';', None) if depth == 0 => {
                    end_word(&mut all, &mut word, &mut is_target);
                    all.push(Vec::new());
                }
                ('>' | '<', None) if depth == 0 => {
                    end_word(&mut all, &mut word, &mut is_target);
                    is_target = true;
                }
                (one, None) if one.is_whitespace() && depth == 0 => {
                    end_word(&mut all, &mut word, &mut is_target);
                }
                (one, _) => word.push(one),
            }
        }
        end_word(&mut all, &mut word, &mut is_target);
        all.push(Vec::new());
    }
    all.retain(|words| !words.is_empty());
    all
}

fn end_word(all: &mut [Vec<String>], word: &mut String, is_target: &mut bool) {
    if word.is_empty() {
        return;
    }
    let done = std::mem::take(word);
    if std::mem::take(is_target) {
        return;
    }
    all.last_mut().unwrap().push(done);
}

/// `exp_…` and `exp_0190…` stand for an id.
fn with_ids(word: &str) -> String {
    let shortened = Regex::new("\\b([a-z]{3})_[0-9a-f]*…").unwrap();
    let id = format!("${{1}}_{}", "0".repeat(32));
    shortened.replace_all(word, id.as_str()).into_owned()
}

/// What the program says against these words; nothing if it takes them.
fn refused(words: &[String]) -> Option<String> {
    let program = words.iter().position(|word| !word.contains('='))?;
    let (name, _) = words.get(program..)?.split_first()?;
    if Path::new(name).file_name()? != "bakeoff" {
        return None;
    }
    let words = words[program..].iter().map(|word| with_ids(word));
    Cli::try_parse_from(words)
        .err()
        .map(|error| error.to_string())
}

#[test]
fn each_command_in_the_documents_is_taken_by_the_program() {
    let (mut count, mut wrong) = (0, Vec::new());
    for (name, text) in documents() {
        for words in blocks(&text, "sh").into_iter().flat_map(commands) {
            count += usize::from(words.iter().any(|word| word.ends_with("bakeoff")));
            let why = refused(&words);
            wrong.extend(why.map(|why| format!("{name}: {}\n{why}", words.join(" "))));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(count > 40, "{count} commands were found");
    let words = |text: &str| commands(text).remove(0);
    assert!(refused(&words("bakeoff buy trl_…")).is_some());
    assert!(refused(&words("X=1 bakeoff ls --state running | jq . > a # b")).is_none());
}

#[test]
fn each_command_has_an_example_in_its_help_and_takes_it() {
    let mut wrong = Vec::new();
    let mut left = vec![Cli::command()];
    while let Some(command) = left.pop() {
        let own: Vec<clap::Command> = command.get_subcommands().cloned().collect();
        if !own.is_empty() {
            left.extend(own);
            continue;
        }
        let name = command.get_name().to_owned();
        let help = command.get_after_help().map(ToString::to_string);
        let help = help.unwrap_or_default().replace("Example: ", "");
        let lines = help.lines().filter(|line| line.contains("bakeoff "));
        let examples: Vec<Vec<String>> = lines.flat_map(commands).collect();
        let is_named = |words: &Vec<String>| words.contains(&name);
        if !command.is_hide_set() && !examples.iter().any(is_named) {
            wrong.push(format!("{name}: no example"));
        }
        let refusals = examples.iter().filter_map(|words| refused(words));
        wrong.extend(refusals.map(|why| format!("{name}: {why}")));
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Method and path of a `curl`, or of `api`, which is curl with a key.
fn request(words: &[String]) -> Option<(String, String)> {
    if !["api", "curl"].contains(&words.first()?.as_str()) {
        return None;
    }
    let url = words
        .iter()
        .find(|word| word.starts_with("$BAKEOFF_URL/"))?;
    let path = url.trim_start_matches("$BAKEOFF_URL").to_owned();
    let explicit = words.iter().position(|word| word == "-X");
    let explicit = explicit.and_then(|place| words.get(place + 1)).cloned();
    let sends = words
        .iter()
        .any(|word| word == "-d" || word == "--data-binary");
    let usual = if sends { "POST" } else { "GET" };
    Some((explicit.unwrap_or_else(|| usual.to_owned()), path))
}

/// The operation of the API that a request means.
fn operation<'a>(api: &'a Value, method: &str, path: &str) -> Option<&'a Value> {
    let path = path.split('?').next()?;
    let segments: Vec<&str> = path.split('/').collect();
    let paths = api["paths"].as_object()?;
    let is_meant = |template: &str| {
        let template: Vec<&str> = template.split('/').collect();
        template.len() == segments.len()
            && std::iter::zip(&template, &segments)
                .all(|(own, said)| own.starts_with('{') || own == said)
    };
    let of_method = |operations: &'a Value| operations.get(method.to_lowercase());
    let mut found = paths.iter().filter(|(template, _)| is_meant(template));
    found.find_map(|(_, operations)| of_method(operations))
}

#[test]
fn each_request_in_the_documents_is_one_of_the_api() {
    let api = fs::read(root().join("openapi/bakeoff.json")).unwrap();
    let api: Value = serde_json::from_slice(&api).unwrap();
    let (mut count, mut wrong) = (0, Vec::new());
    for (name, text) in documents() {
        let all = blocks(&text, "sh").into_iter().flat_map(commands);
        for (method, path) in all.filter_map(|words| request(&words)) {
            count += 1;
            let Some(operation) = operation(&api, &method, &path) else {
                wrong.push(format!("{name}: there is no {method} {path}"));
                continue;
            };
            let query = path.split_once('?').map_or("", |(_, query)| query);
            let known = operation["parameters"].as_array();
            for (parameter, _) in query.split('&').filter_map(|pair| pair.split_once('=')) {
                let is_known = known
                    .into_iter()
                    .flatten()
                    .any(|one| one["name"] == parameter);
                // The example of a request that is refused.
                if !is_known && parameter != "sate" {
                    wrong.push(format!("{name}: {method} {path} takes no {parameter}"));
                }
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(count > 60, "{count} requests were found");
    assert!(operation(&api, "DELETE", "/v1/prices").is_none());
}

#[test]
fn each_link_in_the_documents_leads_somewhere() {
    let link = Regex::new("\\]\\(([^)]+)\\)").unwrap();
    let (mut count, mut wrong) = (0, Vec::new());
    for (name, text) in documents() {
        let folder = root().join(&name).parent().unwrap().to_path_buf();
        // What stands in code is no link.
        let outside: String = text.split('`').step_by(2).collect();
        for target in link
            .captures_iter(&outside)
            .map(|found| found[1].to_owned())
        {
            count += 1;
            let path = target.split('#').next().unwrap();
            let is_elsewhere = target.starts_with("http");
            if !is_elsewhere && !path.is_empty() && !folder.join(path).exists() {
                wrong.push(format!("{name}: {target}"));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(count > 50, "{count} links were found");
}

#[test]
fn the_readme_is_one_screen_and_its_links() {
    let length = fs::metadata(root().join("README.md")).unwrap().len();
    assert!(length <= README_MAX as u64, "{length} bytes");
}
