//! A real headless Chromium, driven over its DevTools protocol.
//!
//! Each method is one action or observation of a user. Waiting is level-triggered: [`Browser::until`] polls
//! the page until the condition is true.

mod pipe;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Need, eventually};
use pipe::Pipe;

pub use pipe::BrowserEvent;

const PROGRAM: &str = "chromium";
/// Timeout for a condition on a page.
const PATIENCE: Duration = Duration::from_secs(60);

/// A browser with one page open.
#[derive(Debug)]
pub struct Browser {
    pipe: Pipe,
    session: String,
    _folder: TempDir,
}

/// The user's color scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    Light,
    Dark,
}

/// A key on the keyboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Letter(char),
    Enter,
    Escape,
    Tab,
}

/// An element in the accessibility tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accessible {
    pub role: String,
    pub name: String,
    /// Level of a heading.
    pub level: Option<u64>,
    pub focusable: bool,
}

// === impl Browser ===

impl Browser {
    pub const NEEDS: &'static [Need] = &[Need::Program(PROGRAM), Need::Program("setpriv")];

    pub fn start() -> Result<Self> {
        let folder = tempfile::tempdir().context("create the browser's folder")?;
        let arguments = [
            "--headless=new".to_owned(),
            "--remote-debugging-pipe".to_owned(),
            format!("--user-data-dir={}", folder.path().join("profile").display()),
            // Tests run as root and in containers, where the browser's sandbox and shared memory are
            // unavailable.
            "--no-sandbox".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--disable-gpu".to_owned(),
            // No requests to external services.
            "--no-first-run".to_owned(),
            "--disable-background-networking".to_owned(),
            "--disable-component-update".to_owned(),
            "--disable-sync".to_owned(),
            "--no-proxy-server".to_owned(),
            "--hide-scrollbars".to_owned(),
            "about:blank".to_owned(),
        ];
        let log = folder.path().join("browser.log");
        let mut pipe = Pipe::start(PROGRAM, &arguments, &log)?;
        let mut open = || -> Result<String> {
            let made = pipe.call(None, "Target.createTarget", &json!({"url": "about:blank"}))?;
            let wish = json!({"targetId": made["targetId"], "flatten": true});
            let attached = pipe.call(None, "Target.attachToTarget", &wish)?;
            Ok(attached["sessionId"].as_str().context("the browser gave no session")?.to_owned())
        };
        let session = open().with_context(|| {
            format!("open a page; the browser's log:\n{}", std::fs::read_to_string(&log).unwrap_or_default())
        })?;
        let mut browser = Self { pipe, session, _folder: folder };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), &json!({}))?;
        }
        browser.look(Theme::Light)?;
        browser.size(1280, 900)?;
        Ok(browser)
    }

    fn call(&mut self, method: &str, parameters: &Value) -> Result<Value> {
        self.pipe.call(Some(&self.session), method, parameters)
    }

    /// Opens a URL and waits until the page is loaded.
    pub fn open(&mut self, url: &str) -> Result<()> {
        let answer = self.call("Page.navigate", &json!({"url": url}))?;
        if let Some(error) = answer["errorText"].as_str() {
            bail!("cannot open `{url}`: {error}");
        }
        self.until("document.readyState === 'complete'")
    }

    /// Evaluates a JavaScript expression of the page.
    pub fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let wish = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.call("Runtime.evaluate", &wish)?;
        if let Some(details) = answer.get("exceptionDetails") {
            bail!("`{expression}` failed in the page: {details}");
        }
        Ok(answer["result"]["value"].take())
    }

    pub fn text(&mut self, expression: &str) -> Result<String> {
        let value = self.evaluate(expression)?;
        value
            .as_str()
            .map(ToOwned::to_owned)
            .with_context(|| format!("`{expression}` gave {value}, not text"))
    }

    /// Waits until the expression is true. Errors are ignored meanwhile, because a page may be replaced.
    pub fn until(&mut self, expression: &str) -> Result<()> {
        let mut last = Ok(Value::Null);
        let waited = eventually(&format!("`{expression}`"), PATIENCE, || {
            last = self.evaluate(expression);
            matches!(last, Ok(Value::Bool(true))).then_some(())
        });
        waited.with_context(|| format!("the page said {last:?} last"))
    }

    /// Sets the window size in CSS pixels.
    pub fn size(&mut self, width: u32, height: u32) -> Result<()> {
        let wish = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", &wish).map(drop)
    }

    pub fn look(&mut self, theme: Theme) -> Result<()> {
        let value = if theme == Theme::Dark { "dark" } else { "light" };
        let wish = json!({"media": "", "features": [{"name": "prefers-color-scheme", "value": value}]});
        self.call("Emulation.setEmulatedMedia", &wish).map(drop)
    }

    /// Switches to print media.
    pub fn on_paper(&mut self) -> Result<()> {
        self.call("Emulation.setEmulatedMedia", &json!({"media": "print"})).map(drop)
    }

    /// Accepts all certificates, for servers with test certificates.
    pub fn trust_every_certificate(&mut self) -> Result<()> {
        self.call("Security.setIgnoreCertificateErrors", &json!({"ignore": true})).map(drop)
    }

    /// Sets whether pages opened from now on may run scripts.
    pub fn scripts(&mut self, run: bool) -> Result<()> {
        self.call("Emulation.setScriptExecutionDisabled", &json!({"value": !run})).map(drop)
    }

    pub fn press(&mut self, key: Key) -> Result<()> {
        let (name, code, text) = match key {
            Key::Letter(letter) => {
                (letter.to_string(), letter.to_ascii_uppercase() as u32, letter.to_string())
            }
            Key::Enter => ("Enter".to_owned(), 13, "\r".to_owned()),
            Key::Escape => ("Escape".to_owned(), 27, String::new()),
            Key::Tab => ("Tab".to_owned(), 9, String::new()),
        };
        // The code of `/` differs from its character.
        let code = if name == "/" { 191 } else { code };
        for kind in ["keyDown", "keyUp"] {
            let mut wish = json!({"type": kind, "key": name, "windowsVirtualKeyCode": code});
            if kind == "keyDown" && !text.is_empty() {
                wish["text"] = text.as_str().into();
            }
            self.call("Input.dispatchKeyEvent", &wish)?;
        }
        Ok(())
    }

    /// Types text into the focused element.
    pub fn write(&mut self, text: &str) -> Result<()> {
        self.call("Input.insertText", &json!({"text": text})).map(drop)
    }

    /// Clicks the first element that matches the selector, if it is visible and not covered.
    ///
    /// A single script does both, because the page may replace the element between two messages.
    pub fn click(&mut self, selector: &str) -> Result<()> {
        let clicked = self.evaluate(&format!(
            "(() => {{ const e = document.querySelector({selector:?}); if (!e) return 'it is not there'; \
             e.scrollIntoView({{block: 'center'}}); const r = e.getClientRects()[0]; if (!r) return 'it is not shown'; \
             const top = document.elementFromPoint(r.left + r.width / 2, r.top + r.height / 2); \
             if (!top || !e.contains(top)) return 'something covers it'; e.click(); return ''; }})()"
        ))?;
        match clicked.as_str() {
            Some("") => Ok(()),
            problem => bail!("cannot click `{selector}`: {}", problem.unwrap_or("no answer")),
        }
    }

    /// Saves the visible page as a PNG file.
    pub fn screenshot(&mut self, path: &Path) -> Result<()> {
        let answer = self.call("Page.captureScreenshot", &json!({"format": "png"}))?;
        write_decoded(&answer, path)
    }

    /// Saves the printed page as a PDF file.
    pub fn print(&mut self, path: &Path) -> Result<()> {
        let answer = self.call("Page.printToPDF", &json!({"printBackground": false}))?;
        write_decoded(&answer, path)
    }

    /// Returns the accessibility tree in reading order, without hidden elements.
    pub fn accessible(&mut self) -> Result<Vec<Accessible>> {
        let tree = self.call("Accessibility.getFullAXTree", &json!({}))?;
        let nodes = tree["nodes"].as_array().context("the browser gave no tree")?;
        let seen = nodes.iter().filter(|node| node["ignored"] == false);
        Ok(seen.map(Accessible::read).collect())
    }

    /// Returns the browser's events so far.
    pub fn events(&mut self) -> &[BrowserEvent] {
        self.pipe.listen();
        &self.pipe.events
    }
}

fn write_decoded(answer: &Value, path: &Path) -> Result<()> {
    let data = answer["data"].as_str().context("the browser gave no picture")?;
    let bytes = STANDARD.decode(data).context("decode a picture of the browser")?;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).context("create the folder of pictures")?;
    }
    std::fs::write(path, bytes).with_context(|| format!("write `{}`", path.display()))
}

// === impl Accessible ===

impl Accessible {
    fn read(node: &Value) -> Self {
        let property = |name: &str| {
            let all = node["properties"].as_array();
            all.and_then(|all| all.iter().find(|one| one["name"] == name)).map(|one| &one["value"]["value"])
        };
        let text = |field: &str| node[field]["value"].as_str().unwrap_or_default().trim().to_owned();
        Self {
            role: text("role"),
            name: text("name"),
            level: property("level").and_then(Value::as_u64),
            focusable: property("focusable").and_then(Value::as_bool).unwrap_or(false),
        }
    }
}
