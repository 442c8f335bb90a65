//! What is wrong with a step, gathered as it is found: with pointers below the step, and with what may be said of any
//! member. Texts may still hold references.

/// One thing that is wrong with a pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw {
    /// JSON pointer into the pipeline.
    pub pointer: String,
    pub detail: String,
    pub fix: String,
}

impl Flaw {
    pub(crate) fn new(
        pointer: impl Into<String>,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            pointer: pointer.into(),
            detail: detail.into(),
            fix: fix.into(),
        }
    }
}

/// What was found so far.
pub(crate) struct Flaws<'a> {
    pointer: &'a str,
    all: Vec<Flaw>,
}

impl<'a> Flaws<'a> {
    /// `pointer`: of the step's members.
    pub(crate) fn below(pointer: &'a str) -> Self {
        Self {
            pointer,
            all: Vec::new(),
        }
    }

    pub(crate) fn found(self) -> Vec<Flaw> {
        self.all
    }

    pub(crate) fn add_unless(&mut self, is_fine: bool, member: &str, detail: &str, fix: &str) {
        if !is_fine {
            let pointer = format!("{}/{member}", self.pointer);
            self.all.push(Flaw::new(pointer, detail, fix));
        }
    }

    pub(crate) fn number(&mut self, member: &str, value: Option<u32>, least: u32, most: u32) {
        let is_within = value.is_none_or(|value| (least..=most).contains(&value));
        let detail = format!("must be between {least} and {most}");
        self.add_unless(is_within, member, &detail, "choose a number within");
    }

    pub(crate) fn role(&mut self, role: Option<&str>) {
        let is_role =
            |role: &str| role.starts_with("arn:") && role.contains(":role/") || is_open(role);
        self.add_unless(
            role.is_none_or(is_role),
            "role_arn",
            "must be the ARN of a role",
            "use arn:aws:iam::<account>:role/<name>",
        );
    }

    pub(crate) fn address(&mut self, member: &str, uri: Option<&String>) {
        self.add_unless(
            uri.is_none_or(|uri| is_address(uri)),
            member,
            "must be s3://bucket/prefix",
            "give its address",
        );
    }
}

/// A text whose references are not resolved yet.
pub(crate) fn is_open(text: &str) -> bool {
    text.contains("${")
}

pub(crate) fn is_address(text: &str) -> bool {
    text.starts_with("s3://") && text.len() > 5 || is_open(text)
}
