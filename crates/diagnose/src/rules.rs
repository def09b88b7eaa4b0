//! Rule files: their format and validation.

use std::collections::BTreeSet;

use landfall_model::report::Class;
use landfall_model::{Cause, Phase};
use serde::Deserialize;

use crate::catalogue::{Catalogue, CauseEntry};
use crate::embedded;
use crate::facts::{Fact, FactSpec};
use crate::npd;
use crate::origin::{Component, Components, Origins};
use crate::pattern::{Compile, MatchSpec, Pattern};
use crate::version::Range;

/// Limit for rules and milestones; indexes are 16 bits wide.
const MAX_PATTERNS: usize = 8192;

/// The rules of a diagnosis.
#[derive(Debug)]
pub struct RuleSet {
    pub(crate) rules: Vec<Rule>,
    pub(crate) milestones: Vec<Milestone>,
    pub(crate) catalogue: Catalogue,
    pub(crate) origins: Origins,
}

/// Reason for rejecting a rule file.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    #[error("`{file}` is not a rule file")]
    Syntax { file: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("`{file}`: `{id}` cannot be matched")]
    Pattern { file: String, id: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("`{file}`: the name `{id}` is used twice")]
    Duplicate { file: String, id: String },
    #[error("`{id}` names `{name}`, which does not exist")]
    UnknownName { id: String, name: String },
    #[error("`{file}`: `{id}` declares no `sources`: it would accept any program")]
    NoSources { file: String, id: String },
    #[error("`{file}`: `{id}` must have either `match` or `fact`")]
    NoTrigger { file: String, id: String },
    #[error("more than {MAX_PATTERNS} rules, or more than 64 sources")]
    TooMany,
}

/// The trigger of a rule or milestone: lines of certain components, or facts.
#[derive(Debug)]
pub(crate) enum Trigger {
    Line { pattern: Pattern, sources: Components },
    Fact(FactSpec),
}

/// A kind of line that is evidence for a cause.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) id: String,
    pub(crate) cause: Cause,
    pub(crate) trigger: Trigger,
    pub(crate) class: Class,
    pub(crate) strength: Strength,
    pub(crate) phase: Phase,
    pub(crate) component: String,
    pub(crate) title: Option<String>,
    pub(crate) fix: Option<String>,
    pub(crate) explains: Vec<Cause>,
    pub(crate) cleared_by: Vec<String>,
    pub(crate) noise_before: Option<String>,
    pub(crate) after: Option<String>,
    pub(crate) persists: Option<u64>,
    pub(crate) least: Option<u64>,
    pub(crate) workload: bool,
    pub(crate) versions: Option<Range>,
    pub(crate) examples: Examples,
}

/// Significance of a single such line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Strength {
    /// Also seen in healthy bootstraps; a lead at most.
    Hint,
    /// Indicates this cause and several others.
    Weak,
    /// Usually this cause.
    Fair,
    /// Almost always this cause.
    Strong,
    /// The component states the cause.
    Decisive,
}

/// A kind of line that marks progress.
#[derive(Debug)]
pub(crate) struct Milestone {
    pub(crate) id: String,
    pub(crate) trigger: Trigger,
    pub(crate) phase: Phase,
    pub(crate) stage: String,
    pub(crate) event: StageEvent,
    pub(crate) clears: Vec<String>,
    pub(crate) standing: bool,
    pub(crate) patience: Option<u64>,
    pub(crate) waits_for: Option<String>,
    pub(crate) decides: bool,
    pub(crate) crash: bool,
    pub(crate) version_of: Option<String>,
    #[cfg_attr(not(test), expect(dead_code, reason = "tests hold milestones against them"))]
    pub(crate) examples: Examples,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StageEvent {
    Opened,
    Done,
    Failed,
    /// The machine boots: all stages restart.
    Boot,
    /// No stage starts or ends; the line contains information about the machine.
    Seen,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Examples {
    #[serde(default)]
    pub(crate) yes: Vec<Example>,
    #[serde(default)]
    #[cfg_attr(not(test), expect(dead_code, reason = "tests hold rules against them"))]
    pub(crate) no: Vec<Example>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Example {
    Line(String),
    Fact(#[cfg_attr(not(test), expect(dead_code, reason = "tests hold rules against it"))] Fact),
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    pub(crate) component: Option<String>,
    /// The default `sources` of the rules and milestones in this file.
    #[serde(default)]
    pub(crate) sources: Vec<String>,
    #[serde(default)]
    source: Vec<Component>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default)]
    pub(crate) rule: Vec<RuleSpec>,
    #[serde(default)]
    milestone: Vec<MilestoneSpec>,
    #[serde(default)]
    pub(crate) cause: Vec<CauseEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleSpec {
    id: String,
    cause: Cause,
    #[serde(rename = "match")]
    matches: Option<MatchSpec>,
    fact: Option<FactSpec>,
    strength: Strength,
    class: Option<Class>,
    phase: Option<Phase>,
    component: Option<String>,
    /// The accepted components, by their names in `sources.toml`; `any` for all of them.
    #[serde(default)]
    sources: Vec<String>,
    title: Option<String>,
    fix: Option<String>,
    #[serde(default)]
    explains: Vec<Cause>,
    /// Milestones after which the line does not count, in addition to those that clear its cause.
    #[serde(default)]
    cleared_by: Vec<String>,
    /// A milestone before which the line is normal.
    noise_before: Option<String>,
    /// A required earlier milestone; without it the line has no significance.
    after: Option<String>,
    /// Minimum duration of the problem in seconds, if time is known; shorter problems are start-up noise.
    persists: Option<u64>,
    /// Minimum number of such lines; fewer also occur on healthy machines.
    least: Option<u64>,
    /// The releases to which the rule applies: `kubelet >= 1.24, < 1.30`. Used if the logs contain a version.
    versions: Option<String>,
    #[serde(default)]
    examples: Examples,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MilestoneSpec {
    id: String,
    phase: Phase,
    /// The stage that is opened or ended; the phase itself by default.
    stage: Option<String>,
    event: StageEvent,
    #[serde(rename = "match")]
    matches: Option<MatchSpec>,
    fact: Option<FactSpec>,
    /// The accepted components, as in a rule.
    #[serde(default)]
    sources: Vec<String>,
    /// Causes whose earlier evidence is cleared; `*` for everything up to this phase.
    #[serde(default)]
    clears: Vec<String>,
    /// The line shows the state at the end of the log, wherever it is.
    #[serde(default)]
    standing: bool,
    /// Seconds after which the opened stage is overdue.
    patience: Option<u64>,
    /// The condition that the opened stage waits for.
    waits_for: Option<String>,
    /// Whether kubeadm creates a control plane or joins one: later lines belong to this phase.
    #[serde(default)]
    decides: bool,
    /// The line shows that a program crashed. It supports claims of other lines about it.
    #[serde(default)]
    crash: bool,
    /// The component whose version is in the capture `version`.
    version_of: Option<String>,
    #[serde(default)]
    examples: Examples,
}

// === impl Examples ===

impl Examples {
    pub(crate) fn lines(&self) -> impl Iterator<Item = &str> {
        self.yes.iter().filter_map(|example| match example {
            Example::Line(line) => Some(line.as_str()),
            Example::Fact(_) => None,
        })
    }
}

// === impl RuleSet ===

impl RuleSet {
    /// Returns the rules compiled into this binary.
    pub fn embedded() -> Result<Self, RuleError> {
        Self::read(embedded::FILES.iter().copied(), Compile::WhenNeeded)
    }

    /// Returns the rules compiled into this binary and those of further files, given as name and text.
    pub fn embedded_with<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, RuleError> {
        // External expressions are compiled once separately, so that invalid ones are rejected.
        let files: Vec<(&str, &str)> = files.into_iter().collect();
        let common = ["causes.toml", "milestones.toml", "sources.toml"];
        let common = embedded::FILES.iter().copied().filter(|(name, _)| common.contains(name));
        Self::read(common.chain(files.iter().copied()), Compile::Now)?;
        Self::read(embedded::FILES.iter().copied().chain(files), Compile::WhenNeeded)
    }

    /// Parses rule files, given as name and text: our own, and those of node-problem-detector's log monitor.
    ///
    /// The names are used only in error messages.
    pub fn parse<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, RuleError> {
        Self::read(files, Compile::Now)
    }

    fn read<'a>(
        files: impl IntoIterator<Item = (&'a str, &'a str)>,
        when: Compile,
    ) -> Result<Self, RuleError> {
        let mut parsed = Vec::new();
        let mut catalogue = Catalogue::default();
        let mut origins = Origins::default();
        for (name, text) in files {
            let syntax = |source: Box<dyn std::error::Error + Send + Sync>| RuleError::Syntax {
                file: name.to_owned(),
                source,
            };
            // A file of node-problem-detector is JSON; ours are TOML, which never starts with a brace.
            let foreign = text.trim_start().starts_with('{');
            let mut file: File = if foreign {
                npd::read(name, text).map_err(|error| syntax(Box::new(error)))?
            } else {
                toml::from_str(text).map_err(|error| syntax(Box::new(error)))?
            };
            if !origins.extend(std::mem::take(&mut file.source), std::mem::take(&mut file.namespaces)) {
                return Err(RuleError::TooMany);
            }
            for entry in std::mem::take(&mut file.cause) {
                // Their reasons have no catalog page; for a cause with the same name, ours is kept.
                if foreign && catalogue.get(&entry.name).is_some() {
                    continue;
                }
                catalogue.insert(entry).map_err(|entry| RuleError::Duplicate {
                    file: name.to_owned(),
                    id: entry.name.to_string(),
                })?;
            }
            parsed.push((name, file));
        }
        if let Some((id, name)) = catalogue.dangling() {
            return Err(RuleError::UnknownName { id: id.to_string(), name: name.to_string() });
        }

        // Counted before compilation: a file may contain more than could be compiled in reasonable time.
        if parsed.iter().map(|(_, file)| file.rule.len() + file.milestone.len()).sum::<usize>() > MAX_PATTERNS
        {
            return Err(RuleError::TooMany);
        }
        let mut set = Self { rules: Vec::new(), milestones: Vec::new(), catalogue, origins };
        let mut names = BTreeSet::new();
        for (name, file) in parsed {
            let context = FileContext {
                name,
                component: file.component.as_deref(),
                sources: &file.sources,
                origins: &set.origins,
                when,
            };
            for spec in file.rule {
                set.rules.push(Rule::new(&context, spec, &set.catalogue, &mut names)?);
            }
            for spec in file.milestone {
                set.milestones.push(Milestone::new(&context, spec, &mut names)?);
            }
        }
        set.check_names()?;
        Ok(set)
    }

    /// Returns the literals that each chunk is searched for.
    pub fn literals(&self) -> impl Iterator<Item = &str> {
        let patterns = self.triggers().filter_map(Trigger::pattern);
        patterns.flat_map(|pattern| pattern.any.iter().map(String::as_str))
    }

    /// Returns the triggers of all rules, then of all milestones.
    pub(crate) fn triggers(&self) -> impl Iterator<Item = &Trigger> {
        let rules = self.rules.iter().map(|rule| &rule.trigger);
        rules.chain(self.milestones.iter().map(|milestone| &milestone.trigger))
    }

    /// Returns the components of a bootstrap, for readers that can prove the origin of lines.
    pub fn origins(&self) -> &Origins {
        &self.origins
    }

    /// Returns example lines of a cause, from its rules.
    pub fn examples(&self, cause: &Cause) -> impl Iterator<Item = &str> {
        let rules = self.rules.iter().filter(move |rule| rule.cause == *cause);
        rules.flat_map(|rule| rule.examples.lines())
    }

    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    fn check_names(&self) -> Result<(), RuleError> {
        let milestones: BTreeSet<&str> =
            self.milestones.iter().map(|milestone| milestone.id.as_str()).collect();
        let unknown =
            |id: &str, name: &str| RuleError::UnknownName { id: id.to_owned(), name: name.to_owned() };
        for rule in &self.rules {
            for name in rule.cleared_by.iter().chain(&rule.noise_before).chain(&rule.after) {
                if !milestones.contains(name.as_str()) {
                    return Err(unknown(&rule.id, name));
                }
            }
            if let Some(cause) = rule.explains.iter().find(|cause| self.catalogue.get(cause).is_none()) {
                return Err(unknown(&rule.id, cause.as_str()));
            }
        }
        for milestone in &self.milestones {
            for name in milestone.clears.iter().filter(|name| *name != "*") {
                if Cause::new(name.as_str()).ok().and_then(|cause| self.catalogue.get(&cause)).is_none() {
                    return Err(unknown(&milestone.id, name));
                }
            }
        }
        Ok(())
    }
}

// === impl RuleSpec ===

impl RuleSpec {
    /// Creates a rule with only a trigger and a cause.
    pub(crate) fn plain(id: String, cause: Cause, matches: MatchSpec, strength: Strength) -> Self {
        Self {
            id,
            cause,
            matches: Some(matches),
            fact: None,
            strength,
            class: None,
            phase: None,
            component: None,
            sources: Vec::new(),
            title: None,
            fix: None,
            explains: Vec::new(),
            cleared_by: Vec::new(),
            noise_before: None,
            after: None,
            persists: None,
            least: None,
            versions: None,
            examples: Examples::default(),
        }
    }
}

// === impl Rule ===

impl Rule {
    fn new(
        file: &FileContext<'_>,
        mut spec: RuleSpec,
        catalogue: &Catalogue,
        names: &mut BTreeSet<String>,
    ) -> Result<Self, RuleError> {
        let trigger = file.trigger(&spec.id, spec.matches.take(), spec.fact.take(), &spec.sources, names)?;
        let Some(entry) = catalogue.get(&spec.cause) else {
            return Err(RuleError::UnknownName { id: spec.id, name: spec.cause.to_string() });
        };
        let component = spec.component.as_deref().or(file.component).unwrap_or(&entry.component).to_owned();
        let versions = spec.versions.as_deref().map(|text| Range::parse(text, &component)).transpose();
        let versions = versions.map_err(|error| RuleError::Pattern {
            file: file.name.to_owned(),
            id: spec.id.clone(),
            source: Box::new(error),
        })?;
        Ok(Self {
            trigger,
            class: spec.class.unwrap_or(entry.class),
            phase: spec.phase.unwrap_or(entry.phase),
            component,
            versions,
            id: spec.id,
            cause: spec.cause,
            strength: spec.strength,
            title: spec.title,
            fix: spec.fix,
            explains: spec.explains,
            cleared_by: spec.cleared_by,
            noise_before: spec.noise_before,
            after: spec.after,
            persists: spec.persists,
            least: spec.least,
            workload: entry.workload,
            examples: spec.examples,
        })
    }
}

// === impl Milestone ===

impl Milestone {
    fn new(
        file: &FileContext<'_>,
        spec: MilestoneSpec,
        names: &mut BTreeSet<String>,
    ) -> Result<Self, RuleError> {
        let trigger = file.trigger(&spec.id, spec.matches, spec.fact, &spec.sources, names)?;
        Ok(Self {
            trigger,
            stage: spec.stage.unwrap_or_else(|| spec.phase.name().to_owned()),
            id: spec.id,
            phase: spec.phase,
            event: spec.event,
            clears: spec.clears,
            standing: spec.standing,
            patience: spec.patience,
            waits_for: spec.waits_for,
            decides: spec.decides,
            crash: spec.crash,
            version_of: spec.version_of,
            examples: spec.examples,
        })
    }
}

impl Milestone {
    /// Returns the last phase whose success this proves.
    ///
    /// A running control plane or a joined node proves that everything up to its kubelet works.
    pub(crate) fn reach(&self) -> Option<Phase> {
        self.clears.iter().any(|name| name == "*").then(|| self.phase.max(Phase::Kubelet))
    }
}

// === impl Strength ===

impl Strength {
    /// Returns the share of such lines that indicate the cause, estimated from labeled logs and component
    /// sources.
    pub(crate) fn value(self) -> f64 {
        match self {
            Self::Hint => 0.2,
            Self::Weak => 0.45,
            Self::Fair => 0.7,
            Self::Strong => 0.87,
            Self::Decisive => 0.95,
        }
    }
}

/// Properties shared by the rules and milestones of one file.
struct FileContext<'f> {
    name: &'f str,
    component: Option<&'f str>,
    sources: &'f [String],
    origins: &'f Origins,
    when: Compile,
}

// === impl FileContext ===

impl FileContext<'_> {
    fn trigger(
        &self,
        id: &str,
        matches: Option<MatchSpec>,
        fact: Option<FactSpec>,
        sources: &[String],
        names: &mut BTreeSet<String>,
    ) -> Result<Trigger, RuleError> {
        let (file, id) = (self.name.to_owned(), id.to_owned());
        if !names.insert(id.clone()) {
            return Err(RuleError::Duplicate { file, id });
        }
        let spec = match (matches, fact) {
            (Some(spec), None) => spec,
            (None, Some(fact)) => return Ok(Trigger::Fact(fact)),
            _ => return Err(RuleError::NoTrigger { file, id }),
        };
        let names = if sources.is_empty() { self.sources } else { sources };
        if names.is_empty() {
            return Err(RuleError::NoSources { file, id });
        }
        let mut sources = Components::NONE;
        for name in names {
            let named = self.origins.named(name);
            let named = named.ok_or_else(|| RuleError::UnknownName { id: id.clone(), name: name.clone() })?;
            sources = sources.union(named);
        }
        match Pattern::new(&spec, self.when) {
            Ok(pattern) => Ok(Trigger::Line { pattern, sources }),
            Err(error) => Err(RuleError::Pattern { file, id, source: Box::new(error) }),
        }
    }
}

// === impl Trigger ===

impl Trigger {
    pub(crate) fn pattern(&self) -> Option<&Pattern> {
        match self {
            Self::Line { pattern, .. } => Some(pattern),
            Self::Fact(_) => None,
        }
    }

    pub(crate) fn accepts(&self, components: Components) -> bool {
        match self {
            Self::Line { sources, .. } => sources.intersects(components),
            Self::Fact(_) => false,
        }
    }
}
