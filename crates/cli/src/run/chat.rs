//! A chat on the terminal.

use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;

use tandem_api::{FinishReason, Role, TandemInfo};
use tokio::sync::mpsc;

use super::{Arguments, ask, request, said};
use crate::coordinator::Coordinator;
use crate::{output, shutdown};

/// What a line of input begins with that is a command.
const NEW: &str = "/new";
/// The same for the end.
const END: [&str; 2] = ["/bye", "/exit"];
/// Where a person is to write.
const PROMPT: &str = ">>> ";

/// Answers line after line until the input ends.
///
/// # Errors
/// If an answer cannot be shown. One that fails is told, and the chat goes on.
pub async fn chat(
    coordinator: &Coordinator,
    arguments: &Arguments,
    model: &str,
) -> anyhow::Result<ExitCode> {
    let is_terminal = std::io::stdin().is_terminal();
    let mut lines = lines();
    let mut signals = shutdown::Signals::listen()?;
    let mut messages = Vec::new();
    // Whoever pipes questions in is to see that one was not answered.
    let mut code = ExitCode::SUCCESS;
    loop {
        if is_terminal {
            output::print_part(PROMPT)?;
        }
        let line = tokio::select! {
            line = lines.recv() => line,
            _ = signals.next() => None,
        };
        let Some(line) = line else {
            return Ok(code);
        };
        match line.trim() {
            "" => continue,
            NEW => {
                messages.clear();
                continue;
            }
            end if END.contains(&end) => return Ok(code),
            text => messages.push(said(Role::User, text.to_owned())),
        }
        let mut text = String::new();
        let request = request(arguments, model.to_owned(), messages.clone());
        let answered = tokio::select! {
            answered = ask(coordinator, &request, &mut text) => answered,
            is_cut = signals.next() => {
                output::print("")?;
                if !is_cut {
                    return Ok(ExitCode::SUCCESS);
                }
                eprintln!("tandem: cut");
                messages.push(said(Role::Assistant, text));
                continue;
            }
        };
        match answered {
            Ok((info, finish)) => {
                messages.push(said(Role::Assistant, text));
                eprintln!("{}", told(&info, finish));
            }
            Err(error) => {
                eprintln!("tandem: {}", output::explain(&error));
                messages.pop();
                if !is_terminal {
                    code = ExitCode::FAILURE;
                }
            }
        }
    }
}

/// One line about an answer.
fn told(info: &TandemInfo, finish: FinishReason) -> String {
    let phases = &info.phases_ms;
    let cut = match finish {
        FinishReason::Length => ", cut at its greatest length",
        _ => "",
    };
    let rate = match phases.decode > 0.0 {
        true => {
            let rate = f64::from(info.generated_tokens.saturating_sub(1)) * 1e3 / phases.decode;
            format!(", {rate:.1} tokens/s")
        }
        false => String::new(),
    };
    format!(
        "[{} + {} tokens, first after {:.0} ms{rate}{cut}]",
        info.prompt_tokens, info.generated_tokens, phases.first_token
    )
}

/// The lines of standard input. Reading waits for a person, so it has a thread of its own, for which nothing waits.
fn lines() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let line = match line {
                Ok(line) => line,
                Err(error) => {
                    eprintln!("tandem: a line cannot be read: {error}");
                    continue;
                }
            };
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
        // The shell's prompt begins on a line of its own.
        if std::io::stdin().is_terminal() {
            let _ = writeln!(std::io::stdout());
        }
    });
    receiver
}
