//! The documents that an experiment is made from, sorted by what they say: a job, a model, how it is split, what a trainer
//! is configured with.

use std::collections::BTreeMap;

use bakeoff_domain::catalog::{hugging_face, known_models};
use bakeoff_domain::finding::escaped;
use serde_json::{Map, Value};

use super::trainer_config::{self, Fsdp, TrainerConfig};
use super::{inside, wandb};
use crate::lint::job::registry_region;
use crate::lint::{Kind, kind_of, shape, trainer};
use crate::render::estimator;

/// Where an experiment has its model.
pub(super) const MODEL: &str = "/workload/model";

/// A document that no experiment can be made from, or an answer to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// JSON pointer into the request.
    pub pointer: String,
    pub why: String,
    pub fix: String,
}

/// What the documents say.
#[derive(Debug, Default)]
pub(super) struct Material {
    /// A CreateTrainingJob body, or as much of one as there is.
    pub(super) body: Value,
    /// That the arguments of an estimator name.
    pub(super) region: Option<String>,
    /// Whether sources stand on a machine and are not in S3 yet.
    pub(super) local_sources: bool,
    /// A model's `config.json`, and what said it.
    pub(super) model: Option<(Value, String)>,
    pub(super) deepspeed: Option<Map<String, Value>>,
    /// Whether its own file was sent.
    has_deepspeeds_own: bool,
    pub(super) fsdp: Option<Fsdp>,
    /// Whose configuration file there is, of those that train.
    trainer: Option<&'static str>,
    /// What a trainer's configuration file sets, under the names that scripts are told, and whose file it is.
    pub(super) settings: BTreeMap<String, (String, &'static str)>,
    /// Of the code, where a run tells it.
    pub(super) commit: Option<String>,
    /// What such files say that an experiment has no place for, and why.
    pub(super) left_out: Vec<(&'static str, &'static str)>,
    /// An experiment that is one already.
    pub(super) experiment: Option<Value>,
}

impl Material {
    /// `model`: the one that a question was answered with, which goes before any other.
    pub(super) fn of(
        documents: &[Value],
        model: Option<&Value>,
        stamp: &str,
    ) -> Result<Self, Vec<Unreadable>> {
        let mut material = Self {
            body: Value::Object(Map::new()),
            ..Self::default()
        };
        let mut unreadable = Vec::new();
        for (index, document) in documents.iter().enumerate() {
            if let Err((why, fix)) = material.add(document, stamp) {
                unreadable.push(Unreadable {
                    pointer: format!("/documents/{index}"),
                    why,
                    fix,
                });
            }
        }
        if let Some(model) = model {
            material.model = None;
            if let Err((why, fix)) = material.add(model, stamp) {
                unreadable.push(Unreadable {
                    pointer: format!("/answers/{}", escaped(MODEL)),
                    why,
                    fix,
                });
            }
        }
        if material.has_deepspeeds_own {
            material
                .left_out
                .retain(|(_, why)| *why != trainer_config::NOT_HERE);
        }
        if documents.is_empty() && model.is_none() {
            unreadable.push(Unreadable {
                pointer: "/documents".to_owned(),
                why: "there is no document".to_owned(),
                fix: SEND.to_owned(),
            });
        }
        if material.experiment.is_some() && model.is_some() {
            unreadable.push(Unreadable {
                pointer: format!("/answers/{}", escaped(MODEL)),
                why: "the document is an experiment already, with a model of its own".to_owned(),
                fix: "write the model into the experiment, as `bakeoff lint` shows it for its config.json"
                    .to_owned(),
            });
        }
        if material.experiment.is_some() && documents.len() > 1 {
            unreadable.push(Unreadable {
                pointer: "/documents".to_owned(),
                why: "one of them is an experiment already, so the others would not be read"
                    .to_owned(),
                fix: "send the experiment alone".to_owned(),
            });
        }
        if unreadable.is_empty() {
            Ok(material)
        } else {
            Err(unreadable)
        }
    }

    /// Notes the parts of a ModelTrainer that no job is sent.
    fn leave_out_of_trainer(&mut self, entries: &Map<String, Value>) {
        let source = entries.get("source_code");
        let command = source.and_then(|source| source.get("command"));
        if command.is_some_and(Value::is_string) {
            self.left_out.push((
                "source_code.command",
                "its command is not sent: set workload.container_entrypoint",
            ));
        }
        if entries.get("hyperparameters").is_some_and(Value::is_string) {
            self.left_out.push((
                "hyperparameters",
                "the file is not here: write what it says into workload.hyperparameters",
            ));
        }
    }

    fn add(&mut self, document: &Value, stamp: &str) -> Result<(), Refused> {
        if let Value::String(name) = document {
            let model = known_models::find(name).ok_or_else(|| unknown_model(name))?;
            return self.take_model(&model.config, format!("the model {name}"));
        }
        if let Some(arguments) = trainer_config::launched_by_accelerate(document) {
            return self.take_launched(document, &arguments, stamp);
        }
        if self.take_settings_of(document)? {
            return Ok(());
        }
        let kind = kind_of(document).ok_or_else(|| {
            let why = "nothing tells what kind of document it is".to_owned();
            (why, SEND.to_owned())
        })?;
        if let Some(held) = inside::only(kind, document) {
            let body = held.map_err(|places| {
                let why = format!(
                    "it is {} with several training jobs: {places}",
                    kind.in_words()
                );
                (why, "send one of them by itself".to_owned())
            })?;
            return self.take_job(body);
        }
        let is_job = matches!(
            kind,
            Kind::TrainingJob | Kind::ModelTrainer | Kind::Estimator
        );
        if is_job {
            self.is_first_job()?;
        }
        let entries = document.as_object().cloned().unwrap_or_default();
        match kind {
            Kind::Experiment => self.experiment = Some(document.clone()),
            // Some write its members as Python does: training_job_name.
            Kind::TrainingJob => return self.take_job(shape::shaped(document)),
            Kind::ModelTrainer => {
                self.local_sources = entries
                    .get("source_code")
                    .is_some_and(|source| is_local(source.get("source_dir")));
                self.leave_out_of_trainer(&entries);
                self.body = trainer::said(&entries);
            }
            Kind::Estimator => {
                self.local_sources =
                    is_local(entries.get("source_dir").or(entries.get("entry_point")));
                self.take_estimator(&entries, stamp)?;
            }
            Kind::ModelConfig => {
                self.take_model(document, source_of(&entries))?;
            }
            Kind::DeepspeedConfig => {
                self.take_settings(batches(&entries), DEEPSPEED);
                self.deepspeed = Some(entries);
                self.has_deepspeeds_own = true;
            }
            Kind::Workload
            | Kind::InstanceProfile
            | Kind::Run
            | Kind::TuningJob
            | Kind::ProcessingJob
            | Kind::TransformJob
            | Kind::EndpointConfig
            | Kind::SagemakerModel
            | Kind::PipelineDefinition
            | Kind::StateMachine
            | Kind::CloudformationTemplate => {
                let why = format!("it is {}, and no training job", kind.in_words());
                return Err((why, SEND.to_owned()));
            }
        }
        Ok(())
    }

    /// Takes the job that accelerate would launch, and what its configuration says of the training.
    fn take_launched(
        &mut self,
        document: &Value,
        arguments: &Map<String, Value>,
        stamp: &str,
    ) -> Result<(), Refused> {
        self.is_first_job()?;
        self.take_estimator(arguments, stamp)?;
        if document.get("distributed_type").and_then(Value::as_str) == Some("DATA_PARALLEL") {
            self.left_out.push((
                "distributed_type",
                "accelerate starts SageMaker's data parallel library: give each profile \"library\": \"smddp\" if it is to be used",
            ));
        }
        self.left_out.push((
            "the script",
            "it stands on the command line of accelerate: set workload.script",
        ));
        self.take_settings_of(document).map(drop)
    }

    fn take_estimator(
        &mut self,
        arguments: &Map<String, Value>,
        stamp: &str,
    ) -> Result<(), Refused> {
        self.body = of_estimator(arguments, stamp)?;
        let region = arguments.get("region").and_then(Value::as_str);
        self.region = region.map(str::to_owned);
        Ok(())
    }

    /// An explicit model replaces one logged by a run; a second explicit model is refused.
    fn take_model(&mut self, config: &Value, from: String) -> Result<(), Refused> {
        match &self.model {
            Some((_, other)) if other != wandb::RUN => Err((
                format!("it is a second model, beside {other}"),
                "send one of them: an experiment trains one model".to_owned(),
            )),
            _ => {
                self.model = Some((config.clone(), from));
                Ok(())
            }
        }
    }

    /// Takes what a W&B run or a trainer's configuration says; false if the document is neither.
    fn take_settings_of(&mut self, document: &Value) -> Result<bool, Refused> {
        if let Some(config) = wandb::config(document) {
            self.take_run(&config);
            if let Some(start) = wandb::start_within(document) {
                self.commit = start.commit;
                self.take_settings(start.settings, wandb::RUN);
            }
        } else if let Some(start) = wandb::start(document) {
            self.commit = start.commit;
            self.take_settings(start.settings, wandb::RUN);
        } else if let Some(config) = TrainerConfig::of(document) {
            // As the API of W&B gives a run's settings: without its marks, the model's and the trainer's as one.
            if hugging_face::is_config(document) {
                self.take_run(document);
            } else {
                self.is_first_trainer(config.from)?;
                self.take_config(config);
            }
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Two trainers' files would be mixed, setting by setting.
    fn is_first_trainer(&mut self, from: &'static str) -> Result<(), Refused> {
        if !trainer_config::trains(from) {
            return Ok(());
        }
        match self.trainer.replace(from) {
            None => Ok(()),
            Some(_) => Err((
                "it is a second trainer's configuration".to_owned(),
                "send one of them: an experiment runs one trainer".to_owned(),
            )),
        }
    }

    /// Several may be sent: the trainer's own goes before accelerate's if it is sent first.
    fn take_config(&mut self, config: TrainerConfig) {
        self.take_settings(config.settings, config.from);
        if self.deepspeed.is_none() {
            self.deepspeed = config.split;
        }
        self.fsdp = self.fsdp.or(config.fsdp);
        self.left_out.extend(config.left_out);
    }

    /// Hugging Face's Trainer logs the model's configuration and its own arguments as one.
    fn take_run(&mut self, config: &Value) {
        match TrainerConfig::of_run(config) {
            Some(own) => self.take_config(own),
            None => self.take_settings(trainer_config::scalars(config), wandb::RUN),
        }
        if hugging_face::is_config(config) && self.model.is_none() {
            self.model = Some((config.clone(), wandb::RUN.to_owned()));
        }
    }

    fn take_settings(&mut self, settings: BTreeMap<String, String>, from: &'static str) {
        for (name, value) in settings {
            self.settings.entry(name).or_insert((value, from));
        }
    }

    fn take_job(&mut self, body: Value) -> Result<(), Refused> {
        self.is_first_job()?;
        self.body = body;
        Ok(())
    }

    fn is_first_job(&self) -> Result<(), Refused> {
        if self.body.as_object().is_none_or(Map::is_empty) {
            return Ok(());
        }
        Err((
            "it is a second training job".to_owned(),
            "import each job by itself".to_owned(),
        ))
    }
}

const DEEPSPEED: &str = "DeepSpeed's configuration";

/// The sizes of DeepSpeed's batches, under the names that scripts are told; `auto` says nothing.
fn batches(entries: &Map<String, Value>) -> BTreeMap<String, String> {
    let names = [
        ("train_batch_size", "global_batch_size"),
        (
            "train_micro_batch_size_per_gpu",
            "train_micro_batch_size_per_gpu",
        ),
        ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ];
    let counts = names.into_iter().filter_map(|(own, told)| {
        let count = entries.get(own)?.as_u64()?;
        Some((told.to_owned(), count.to_string()))
    });
    counts.collect()
}

/// Whose a `config.json` is, as far as it says.
fn source_of(config: &Map<String, Value>) -> String {
    let name = config.get("_name_or_path").and_then(Value::as_str);
    name.map_or_else(
        || "config.json".to_owned(),
        |name| format!("config.json of {name}"),
    )
}

/// Why, and what to do.
type Refused = (String, String);

const SEND: &str = "send an estimator's or a ModelTrainer's arguments, a CreateTrainingJob body, a description of a job, \
                    a config.json, the name of a model, a DeepSpeed configuration, the configuration file of a trainer \
                    (Axolotl, LLaMA-Factory, TrainingArguments, accelerate), or a W&B run's config.yaml and wandb-metadata.json";

fn unknown_model(name: &str) -> Refused {
    (
        format!("the shape of {name:?} is not known here"),
        "send its config.json (`AutoConfig.from_pretrained(name).to_dict()`)".to_owned(),
    )
}

fn is_local(place: Option<&Value>) -> bool {
    let place = place.and_then(Value::as_str);
    place.is_some_and(|place| !place.starts_with("s3://"))
}

/// SageMaker Training Compiler, which gets no new versions.
pub(super) const COMPILER: &str = "compiler_config";

/// Stands in for what an estimator is rendered with and an import can do without.
const STAND_INS: [(&str, &str, &str); 3] = [
    ("role", "arn:aws:iam::000000000000:role/unknown", "/RoleArn"),
    (
        "image_uri",
        "000000000000.dkr.ecr.us-east-1.amazonaws.com/unknown:1",
        "/AlgorithmSpecification/TrainingImage",
    ),
    (
        "instance_type",
        "ml.g5.xlarge",
        "/ResourceConfig/InstanceType",
    ),
];

/// Without a full role ARN the account is unknown, and so are the role and the default bucket that the SDK would derive
/// from it.
fn forget_unknown_account(body: &mut Value, arguments: &Map<String, Value>) {
    let role = arguments.get("role").and_then(Value::as_str);
    if role.is_some_and(|role| role.starts_with("arn:")) {
        return;
    }
    if let Some(members) = body.as_object_mut() {
        members.remove("RoleArn");
    }
    let output = body.pointer_mut("/OutputDataConfig");
    if let Some(output) = output.and_then(Value::as_object_mut)
        && !arguments.contains_key("output_path")
    {
        output.remove("S3OutputPath");
    }
}

/// The body that the SDK would send, without what was not said.
fn of_estimator(arguments: &Map<String, Value>, stamp: &str) -> Result<Value, Refused> {
    let (mut said, wrong) = estimator::read(arguments);
    if let Some(unread) = wrong.iter().find(|one| one.certainly().is_none()) {
        return Err((unread.why.clone(), unread.fix()));
    }
    // Python's None says nothing.
    said.retain(|_, value| !value.is_null());
    let arguments = &said;
    let mut filled = said.clone();
    filled.remove(COMPILER);
    let image = arguments.get("image_uri").and_then(Value::as_str);
    if let Some(region) = image.and_then(registry_region) {
        let own = filled.entry("region");
        own.or_insert_with(|| region.into());
    }
    let is_missing = |name: &str| match name {
        "instance_type" => {
            !arguments.contains_key(name) && !arguments.contains_key("instance_groups")
        }
        "image_uri" => estimator::image(arguments).is_none(),
        _ => !arguments.contains_key(name),
    };
    let missing = STAND_INS.iter().filter(|(name, ..)| is_missing(name));
    let missing: Vec<&(&str, &str, &str)> = missing.collect();
    for (name, value, _) in &missing {
        filled.insert((*name).to_owned(), (*value).into());
    }
    let rendered = estimator::body(&Value::Object(filled), stamp);
    let mut body = rendered.map_err(|why| {
        let fix = "add it to the arguments, or send the request that SageMaker was sent".to_owned();
        (why, fix)
    })?;
    for (_, _, place) in missing {
        let (holder, member) = place.rsplit_once('/').unwrap_or_default();
        if let Some(holder) = body.pointer_mut(holder).and_then(Value::as_object_mut) {
            holder.remove(member);
        }
    }
    forget_unknown_account(&mut body, arguments);
    if let Some(members) = body
        .as_object_mut()
        .filter(|_| arguments.contains_key(COMPILER))
    {
        members.insert(COMPILER.to_owned(), true.into());
    }
    Ok(body)
}
