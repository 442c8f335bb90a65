//! The scripts for processing jobs in `examples/processing/`, run in the folders that SageMaker gives such a
//! job.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::scratch;

/// `/opt/ml` of a job; it ends with the test.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Runs a script; its exit message as JSON, or as text where it failed.
fn run(script: &str, base: &Path, arguments: &[&str]) -> Result<Value, String> {
    let output = Command::new("python3")
        .arg(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("examples/processing")
                .join(script),
        )
        .arg("--base")
        .arg(base)
        .args(arguments)
        .output()
        .unwrap();
    let message = fs::read(base.join("output/message")).unwrap_or_default();
    assert!(message.len() <= 1024, "SageMaker cuts it");
    let message = String::from_utf8(message).unwrap();
    if output.status.success() {
        return Ok(serde_json::from_str(&message).unwrap());
    }
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    Err(message)
}

/// The files of an input, by name.
fn input(base: &Path, channel: &str, files: &[(&str, String)]) {
    let folder = base.join("processing/input").join(channel);
    drop(fs::remove_dir_all(&folder));
    for (name, content) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

fn line(text: &str, language: &str, label: u32) -> String {
    json!({"text": text, "lang": language, "label": label}).to_string() + "\n"
}

fn corpus(from: u32, to: u32) -> String {
    (from..to)
        .map(|number| line(&format!("פסק דין {number}"), "he", number))
        .collect()
}

fn side(base: &Path, name: &str) -> Vec<String> {
    let path = base.join("processing/output").join(name).join("data.jsonl");
    let text = fs::read_to_string(path).unwrap();
    let mut texts: Vec<String> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["text"].to_string())
        .collect();
    texts.sort();
    texts
}

#[test]
fn a_split_depends_on_the_texts_alone() {
    let folder = Folder(scratch("prepare"));
    let base = &*folder.0;
    let wanted = ["--language-field", "lang", "--language", "he"];
    let other = line("Urteil", "de", 1);
    input(
        base,
        "raw",
        &[
            ("a.jsonl", corpus(0, 1000)),
            ("b.jsonl", other.clone() + &corpus(1000, 2000)),
        ],
    );
    let first = run("prepare.py", base, &wanted).unwrap();
    let (train, validation) = (side(base, "train"), side(base, "validation"));
    assert_eq!(train.len() + validation.len(), 2000);
    // Ten per cent of 2,000, within four standard deviations.
    assert!(
        (146..=254).contains(&validation.len()),
        "{}",
        validation.len()
    );
    assert_eq!(first["validation"]["records"], validation.len());
    assert!(validation.iter().all(|text| !train.contains(text)));
    assert_eq!(
        first["dropped"],
        json!({"empty": 0, "malformed": 0, "repeated": 0, "other_language": 1})
    );

    // Other files, another order, everything twice: the same data.
    let twice = corpus(1500, 2000) + &corpus(0, 1500);
    input(
        base,
        "raw",
        &[("deep/z.jsonl", twice.clone()), ("y.jsonl", twice)],
    );
    let again = run("prepare.py", base, &wanted).unwrap();
    assert_eq!(again["data_sha256"], first["data_sha256"]);
    assert_eq!(again["dropped"]["repeated"], 2000);
    assert_eq!(
        (side(base, "train"), side(base, "validation")),
        (train.clone(), validation.clone())
    );

    // Of two records with one text, the same one is kept, whichever comes first.
    let pair = [line("same", "he", 1), line("same", "he", 2)];
    let hashes: Vec<Value> = [pair.concat(), pair.iter().rev().cloned().collect()]
        .into_iter()
        .map(|pair| {
            input(base, "raw", &[("a.jsonl", pair + &corpus(0, 200))]);
            run("prepare.py", base, &[]).unwrap()["data_sha256"].clone()
        })
        .collect();
    assert_eq!(hashes[0], hashes[1]);

    // More data move nothing from one side to the other; other data are other data.
    input(base, "raw", &[("a.jsonl", corpus(0, 3000))]);
    let more = run("prepare.py", base, &wanted).unwrap();
    assert_ne!(more["data_sha256"], first["data_sha256"]);
    let (more_train, more_validation) = (side(base, "train"), side(base, "validation"));
    assert!(train.iter().all(|text| more_train.contains(text)));
    assert!(validation.iter().all(|text| more_validation.contains(text)));
}

#[test]
fn what_cannot_be_split_is_said_where_it_stands() {
    let folder = Folder(scratch("prepare"));
    let base = &*folder.0;
    fs::create_dir_all(base.join("processing/input/raw")).unwrap();
    let said = run("prepare.py", base, &[]).unwrap_err();
    assert!(said.contains("check the input's S3 prefix"), "{said}");
    let broken = corpus(0, 3) + "{\"text\": \n" + &corpus(3, 100);
    input(base, "raw", &[("a.jsonl", broken)]);
    let said = run("prepare.py", base, &[]).unwrap_err();
    assert!(
        said.contains("a.jsonl:4: JSONDecodeError") && said.contains("--malformed-max"),
        "{said}"
    );
    let counted = run("prepare.py", base, &["--malformed-max", "1"]).unwrap();
    assert_eq!(counted["dropped"]["malformed"], 1);
    input(
        base,
        "raw",
        &[
            ("a.jsonl", corpus(0, 100)),
            ("b.jsonl.gz", "no gzip".to_owned()),
        ],
    );
    let said = run("prepare.py", base, &[]).unwrap_err();
    assert!(said.contains("b.jsonl.gz cannot be read"), "{said}");
    input(base, "raw", &[("a.jsonl", line("only", "he", 1))]);
    let said = run("prepare.py", base, &[]).unwrap_err();
    assert!(said.contains("no record is left for"), "{said}");
    fs::create_dir_all(base.join("config")).unwrap();
    let hosts = json!({"current_host": "algo-1", "hosts": ["algo-1", "algo-2"]});
    fs::write(base.join("config/resourceconfig.json"), hosts.to_string()).unwrap();
    let said = run("prepare.py", base, &[]).unwrap_err();
    assert!(said.contains("set InstanceCount to 1"), "{said}");
}

#[test]
fn predictions_are_evaluated_with_intervals() {
    let folder = Folder(scratch("evaluate"));
    let base = &*folder.0;
    let record = |number: u32| {
        let prediction = if number.is_multiple_of(4) {
            "a b"
        } else {
            "a c"
        };
        json!({"reference": "a c", "prediction": prediction, "negative_log_likelihood": 6.0, "tokens": 3}).to_string() + "\n"
    };
    let whole: String = (0..100).map(record).collect();
    input(base, "predictions", &[("p.jsonl", whole)]);
    let found = run("evaluate.py", base, &[]).unwrap();
    let written = fs::read_to_string(base.join("processing/output/evaluation/evaluation.json"));
    assert_eq!(
        serde_json::from_str::<Value>(&written.unwrap()).unwrap(),
        found
    );
    let metrics = &found["metrics"];
    let exact = &metrics["exact_match"];
    // Wilson's interval of 75 of 100: 0.657 to 0.825 (Wilson 1927).
    assert_eq!(
        *exact,
        json!({"value": 0.75, "low": 0.656_955, "high": 0.824_548, "unit": "share", "records": 100})
    );
    // A quarter has one word of two right.
    assert_eq!(metrics["word_f1"]["value"], 0.875);
    let f1 = ["low", "high"].map(|end| metrics["word_f1"][end].as_f64().unwrap());
    assert!(
        f1[0] < 0.86 && f1[0] > 0.80 && f1[1] > 0.89 && f1[1] < 0.95,
        "{f1:?}"
    );
    assert_eq!(metrics["loss"]["value"], 2.0);
    assert_eq!(metrics["perplexity"]["value"], 7.38906);

    input(
        base,
        "predictions",
        &[("p.jsonl", (0..29).map(record).collect())],
    );
    let few = run("evaluate.py", base, &[]).unwrap();
    assert_eq!(
        few["metrics"]["exact_match"]["low"],
        Value::Null,
        "too few for an interval"
    );
    for (wrong, told) in [
        (
            "{\"prediction\": \"a\"}\n",
            "p.jsonl:1: KeyError: 'reference'",
        ),
        ("{}\n", "prediction or negative_log_likelihood"),
        (
            "{\"negative_log_likelihood\": NaN, \"tokens\": 1}\n",
            "must be a finite number",
        ),
        ("", "the predictions are empty"),
    ] {
        input(base, "predictions", &[("p.jsonl", wrong.to_owned())]);
        let said = run("evaluate.py", base, &[]).unwrap_err();
        assert!(said.contains(told), "{said}");
    }
}
