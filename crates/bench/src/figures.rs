//! Means, medians, the machine that figures are of, and how they are told.

use std::io::Write as _;
use std::process::ExitCode;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Table};
use serde::Serialize;
use sysinfo::{CpuRefreshKind, System};

use tandem_engine_llama::build::cores;

/// What was measured on.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// System and architecture.
    pub machine: String,
    /// The processor, where the system tells.
    pub cpu: Option<String>,
    /// Cores that this process may use.
    pub cores: u32,
}

impl Machine {
    /// This one.
    pub fn this() -> Self {
        Self {
            machine: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            cpu: cpu(),
            cores: cores(),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cpu = self.cpu.as_deref().unwrap_or("unknown processor");
        write!(f, "{}, {} cores of {cpu}", self.machine, self.cores)
    }
}

/// The processor's name; on arm64 Linux that of its part, as the kernel gives no other.
fn cpu() -> Option<String> {
    let mut system = System::new();
    system.refresh_cpu_list(CpuRefreshKind::nothing());
    let name = system.cpus().first()?.brand().trim().to_owned();
    (!name.is_empty()).then_some(name)
}

/// Measures, and prints the figures: as one JSON object, or as `shown`
/// writes them.
///
/// # Errors
/// If the measurement fails.
pub async fn told<F: Serialize>(
    measuring: impl Future<Output = anyhow::Result<F>>,
    json: bool,
    shown: impl FnOnce(&F) -> String,
) -> anyhow::Result<ExitCode> {
    let figures = measuring.await?;
    if json {
        print(&serde_json::to_string(&figures)?)?;
    } else {
        print(&shown(&figures))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// 0 if there are none.
pub fn mean(values: &[f64]) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "few values")]
    let count = values.len().max(1) as f64;
    values.iter().sum::<f64>() / count
}

/// The middle one; of an even number the mean of both. 0 if there are none.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Where this part of the values, 0 to 1, lies below; between two of them in proportion. 0 if there are none.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(clippy::cast_precision_loss, reason = "few values")]
    let place = part * sorted.len().saturating_sub(1) as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place in the list"
    )]
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    match (sorted.get(below), sorted.get(above)) {
        (Some(&low), Some(&high)) => low + (high - low) * place.fract(),
        _ => 0.0,
    }
}

/// 10^9 bytes, as a number to divide by.
pub fn gigabytes(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let bytes = bytes as f64;
    bytes / 1e9
}

/// A table with these columns.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(header);
    table
}

/// A number in a table.
pub fn right(text: impl ToString) -> Cell {
    Cell::new(text.to_string()).set_alignment(CellAlignment::Right)
}

/// Writes `text` and a line break to standard output, at once.
///
/// # Errors
/// If nobody reads it any more.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{mean, median, quantile};

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
        assert_eq!(mean(&[1.0, 2.0, 6.0]), 3.0);
        assert_eq!(mean(&[]), 0.0);
    }

    #[test]
    fn quartiles_are_those_of_numpy() {
        let values = [3.0, 1.0, 4.0, 2.0];
        assert_eq!([0.25, 0.75].map(|q| quantile(&values, q)), [1.75, 3.25]);
        assert_eq!([0.0, 1.0].map(|q| quantile(&values, q)), [1.0, 4.0]);
        assert_eq!([0.25, 0.75].map(|q| quantile(&[7.0], q)), [7.0, 7.0]);
    }
}
