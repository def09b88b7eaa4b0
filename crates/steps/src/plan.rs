//! The plan of a run: its name, its inputs and its steps, validated together.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use landfall_model::step::StepTitle;

use crate::step::{PlannedStep, Step};
use crate::values::{Key, Slot, ValueError, Values};

/// Limit above the number of steps of any run; the ledger is written twice for each.
const MAX_STEPS: usize = 256;
/// Names are used as directory names and labels.
const MAX_NAME_BYTES: usize = 64;
/// Bytes of the hash that identify an attempt: 128 bits do not collide by accident.
const ATTEMPT_BYTES: usize = 16;

/// A validated list of steps.
#[derive(Debug)]
pub struct Plan {
    pub(crate) name: String,
    pub(crate) attempt: String,
    pub(crate) inputs: Values,
    pub(crate) steps: Vec<PlannedStep>,
    pub(crate) on_failure: OnFailure,
}

/// Handling of a permanently failed step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// Leave everything as it is.
    #[default]
    Stop,
    /// Roll back the steps, the last one first.
    RollBack,
}

/// Builder of a plan.
#[derive(Debug)]
pub struct PlanBuilder {
    name: String,
    inputs: Values,
    slots: Vec<Slot>,
    asked: Vec<Vec<u8>>,
    steps: Vec<PlannedStep>,
    on_failure: OnFailure,
    problem: Option<PlanError>,
}

/// The reason why steps do not form a run. Each is a defect in the code that defined the list.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error(
        "`{name}` is not a name: lower-case words joined by single hyphens, at most {MAX_NAME_BYTES} bytes"
    )]
    Name { name: String },
    #[error("a run has between 1 and {MAX_STEPS} steps, not {count}")]
    Count { count: usize },
    #[error("two steps are called `{step}`")]
    DuplicateStep { step: &'static str },
    #[error(
        "step `{step}` needs `{value}`, which is neither an input of the run nor given by an earlier step"
    )]
    Unmet { step: &'static str, value: &'static str },
    #[error("`{value}` is given twice, the second time by `{giver}`")]
    GivenTwice { value: &'static str, giver: String },
    #[error("`{value}` is a `{given}`, but step `{step}` takes it for a `{taken}`")]
    Type { step: &'static str, value: &'static str, given: &'static str, taken: &'static str },
    #[error("an input of the run cannot be recorded")]
    Input(#[source] ValueError),
}

// === impl Plan ===

impl Plan {
    /// Starts a plan. The name is a directory name under the state directory.
    pub fn of(name: impl Into<String>) -> PlanBuilder {
        PlanBuilder {
            name: name.into(),
            inputs: Values::new(),
            slots: Vec::new(),
            asked: Vec::new(),
            steps: Vec::new(),
            on_failure: OnFailure::default(),
            problem: None,
        }
    }

    /// Returns the identity of the request: the same name and inputs give the same attempt, on every machine.
    pub fn attempt(&self) -> &str {
        &self.attempt
    }

    pub(crate) fn titles(&self) -> Vec<StepTitle> {
        self.steps
            .iter()
            .map(|step| StepTitle { name: step.spec.name.to_owned(), title: step.spec.title.clone() })
            .collect()
    }
}

// === impl PlanBuilder ===

impl PlanBuilder {
    /// Adds an input: recorded for the steps, and part of the run's identity.
    #[must_use]
    pub fn input<T: Serialize + DeserializeOwned>(mut self, key: &Key<T>, value: &T) -> Self {
        let slot = key.slot();
        match key.encode(value) {
            _ if self.inputs.contains_key(slot.name) => {
                self.fail(PlanError::GivenTwice { value: slot.name, giver: "the run".into() });
            }
            Ok(value) => {
                self.inputs.insert(slot.name.to_owned(), value);
                self.slots.push(slot);
            }
            Err(error) => self.fail(PlanError::Input(error)),
        }
        self
    }

    /// Adds bytes that are part of the run's identity but never recorded: the secret of the request.
    #[must_use]
    pub fn asked_with(mut self, secret: &[u8]) -> Self {
        self.asked.push(Sha256::digest(secret).to_vec());
        self
    }

    #[must_use]
    pub fn step(mut self, step: impl Step + 'static) -> Self {
        self.steps.push(PlannedStep { spec: step.spec(), work: Box::new(step) });
        self
    }

    #[must_use]
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    pub fn build(self) -> Result<Plan, PlanError> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        check_name(&self.name)?;
        if !(1..=MAX_STEPS).contains(&self.steps.len()) {
            return Err(PlanError::Count { count: self.steps.len() });
        }
        let mut known = self.slots;
        for (index, PlannedStep { spec, .. }) in self.steps.iter().enumerate() {
            let name = spec.name;
            check_name(name)?;
            if self.steps[..index].iter().any(|earlier| earlier.spec.name == name) {
                return Err(PlanError::DuplicateStep { step: name });
            }
            for need in &spec.needs {
                match known.iter().find(|slot| slot.name == need.name) {
                    None => return Err(PlanError::Unmet { step: name, value: need.name }),
                    Some(slot) if slot.of != need.of => {
                        return Err(PlanError::Type {
                            step: name,
                            value: need.name,
                            given: slot.of,
                            taken: need.of,
                        });
                    }
                    Some(_) => {}
                }
            }
            for &given in &spec.gives {
                if known.iter().any(|slot| slot.name == given.name) {
                    return Err(PlanError::GivenTwice { value: given.name, giver: name.to_owned() });
                }
                known.push(given);
            }
        }
        let attempt = attempt(&self.name, &self.inputs, &self.asked);
        Ok(Plan {
            name: self.name,
            attempt,
            inputs: self.inputs,
            steps: self.steps,
            on_failure: self.on_failure,
        })
    }

    fn fail(&mut self, problem: PlanError) {
        self.problem.get_or_insert(problem);
    }
}

fn check_name(name: &str) -> Result<(), PlanError> {
    let word = |word: &str| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    if name.len() <= MAX_NAME_BYTES && name.split('-').all(word) {
        Ok(())
    } else {
        Err(PlanError::Name { name: name.to_owned() })
    }
}

fn attempt(name: &str, inputs: &Values, asked: &[Vec<u8>]) -> String {
    let mut hash = Sha256::new();
    feed(&mut hash, b"landfall run 1");
    feed(&mut hash, name.as_bytes());
    for (name, value) in inputs {
        feed(&mut hash, name.as_bytes());
        feed_value(&mut hash, value);
    }
    // Separates inputs from secrets: a secret must not equal an input with the same bytes.
    feed(&mut hash, b"asked with");
    for digest in asked {
        feed(&mut hash, digest);
    }
    hex::encode(&hash.finalize()[..ATTEMPT_BYTES])
}

/// The length precedes the bytes, so that two texts cannot run together.
fn feed(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_be_bytes());
    hash.update(bytes);
}

/// Members of objects are hashed by name: their order in memory depends on the build options of serde_json.
fn feed_value(hash: &mut Sha256, value: &Value) {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            feed(hash, b"{");
            for (name, value) in members {
                feed(hash, name.as_bytes());
                feed_value(hash, value);
            }
            feed(hash, b"}");
        }
        Value::Array(items) => {
            feed(hash, b"[");
            for item in items {
                feed_value(hash, item);
            }
            feed(hash, b"]");
        }
        plain => feed(hash, plain.to_string().as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::{Applied, Context, Found, StepError, StepSpec};

    struct Shape {
        name: &'static str,
        needs: Vec<Slot>,
        gives: Vec<Slot>,
    }

    impl Step for Shape {
        fn spec(&self) -> StepSpec {
            StepSpec::new(self.name, self.name.to_owned()).needs(self.needs.clone()).gives(self.gives.clone())
        }

        async fn check(&self, _: &Context<'_>) -> Result<Found, StepError> {
            Ok(Found::Needed)
        }
        async fn apply(&self, _: &Context<'_>) -> Result<Applied, StepError> {
            Ok(Applied::Done(crate::Outputs::none()))
        }
    }

    const VERSION: Key<String> = Key::new("version");
    const VERSION_AS_NUMBER: Key<u32> = Key::new("version");
    const IMAGE: Key<String> = Key::new("image");

    fn shape(name: &'static str, needs: &[Slot], gives: &[Slot]) -> Shape {
        Shape { name, needs: needs.to_vec(), gives: gives.to_vec() }
    }

    #[test]
    fn steps_that_do_not_fit_together_are_refused() {
        let version = VERSION.slot();
        let image = IMAGE.slot();
        let run = || Plan::of("prepare").input(&VERSION, &"v1".to_owned());
        run()
            .step(shape("a", &[version], &[image]))
            .step(shape("b", &[image, version], &[]))
            .build()
            .unwrap();

        let refused = |plan: PlanBuilder| plan.build().unwrap_err().to_string();
        let too_early = run().step(shape("b", &[image], &[])).step(shape("a", &[version], &[image]));
        assert!(refused(too_early).starts_with("step `b` needs `image`, which is neither"));
        let own = run().step(shape("a", &[image], &[image]));
        assert!(refused(own).starts_with("step `a` needs `image`"));
        assert!(refused(run().step(shape("a", &[], &[version]))).starts_with("`version` is given twice"));
        assert!(refused(run().input(&VERSION, &"v2".to_owned())).starts_with("`version` is given twice"));
        let twice = run().step(shape("a", &[], &[])).step(shape("a", &[], &[]));
        assert_eq!(refused(twice), "two steps are called `a`");
        let other_type = run().step(shape("a", &[VERSION_AS_NUMBER.slot()], &[]));
        assert!(refused(other_type).contains("step `a` takes it for a `u32`"));
        assert!(refused(run()).contains("between 1 and"));
        assert!(refused(run().step(shape("A b", &[], &[]))).contains("is not a name"));
        assert!(refused(Plan::of("../x").step(shape("a", &[], &[]))).contains("is not a name"));
    }

    #[test]
    fn the_attempt_is_what_was_asked_and_nothing_else() {
        let attempt = |name: &str, version: &str, secret: Option<&[u8]>| {
            let plan = Plan::of(name).input(&VERSION, &version.to_owned()).step(shape("a", &[], &[]));
            let plan = if let Some(secret) = secret { plan.asked_with(secret) } else { plan };
            plan.build().unwrap().attempt
        };
        let first = attempt("prepare", "v1", None);
        assert_eq!(first, attempt("prepare", "v1", None));
        assert_eq!(first.len(), 32);
        assert_ne!(first, attempt("prepare", "v2", None));
        assert_ne!(first, attempt("in-place", "v1", None));
        assert_ne!(first, attempt("prepare", "v1", Some(b"secret")));
        assert_ne!(attempt("prepare", "v1", Some(b"a")), attempt("prepare", "v1", Some(b"b")));
    }

    #[test]
    fn the_order_of_members_is_no_part_of_the_attempt() {
        let hash = |text: &str| {
            let mut hash = Sha256::new();
            feed_value(&mut hash, &serde_json::from_str(text).unwrap());
            hex::encode(hash.finalize())
        };
        assert_eq!(hash(r#"{"a":1,"b":[2,{"c":3,"d":4}]}"#), hash(r#"{"b":[2,{"d":4,"c":3}],"a":1}"#));
        assert_ne!(hash(r#"["ab","c"]"#), hash(r#"["a","bc"]"#));
        assert_ne!(hash(r#"[["a"],"b"]"#), hash(r#"["a",["b"]]"#));
        assert_ne!(hash(r#""1""#), hash("1"));
    }
}
