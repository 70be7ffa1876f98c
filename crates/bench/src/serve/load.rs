//! Many requests at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::request::{Answered, Server};

/// When requests are sent.
#[derive(Debug, Clone, Copy)]
pub enum Load {
    /// By so many clients, one at a time each.
    Closed(u32),
    /// So many per second.
    Open(f64),
}

/// What came of one round.
#[derive(Debug, Default)]
pub struct Round {
    /// From the first request to the last answer.
    pub wall: Duration,
    /// Complete answers.
    pub answers: Vec<Answered>,
    /// Why others failed.
    pub failures: Vec<String>,
    /// Heavy prompts that were read to the end meanwhile.
    pub heavy: Vec<Answered>,
}

impl Round {
    /// Why nothing can be said of it, if that is so.
    pub fn is_useless(&self) -> Option<&str> {
        let tokens: u64 = self.answers.iter().map(|a| a.tokens).sum();
        (tokens == 0).then(|| self.failures.first().map_or("none came", String::as_str))
    }
}

impl Load {
    /// Sends all prompts, and heavy ones until all answers are complete.
    pub async fn run(
        self,
        server: &Server,
        prompts: &[String],
        heavy: Option<&impl Fn(u64) -> String>,
        seed: u64,
    ) -> Round {
        let over = AtomicBool::new(false);
        let since = Instant::now();
        let light = async {
            let asked = match self {
                Self::Closed(clients) => closed(server, prompts, clients).await,
                Self::Open(rate) => open(server, prompts, rate, seed).await,
            };
            over.store(true, Ordering::Relaxed);
            (asked, since.elapsed())
        };
        let heavy = async {
            let mut read = Vec::new();
            let Some(heavy) = heavy else { return read };
            for number in 0.. {
                let answer = server.ask(&heavy(number), Some(1)).await;
                // One that ends later was read in part while nobody else asked.
                if over.load(Ordering::Relaxed) {
                    break;
                }
                read.push(answer);
            }
            read
        };
        let ((asked, wall), heavy) = tokio::join!(light, heavy);
        let mut round = Round {
            wall,
            ..Round::default()
        };
        for answer in asked {
            match answer {
                Ok(answer) => round.answers.push(answer),
                Err(error) => round.failures.push(format!("{error:#}")),
            }
        }
        for answer in heavy {
            match answer {
                Ok(answer) => round.heavy.push(answer),
                Err(error) => round.failures.push(format!("heavy prompt: {error:#}")),
            }
        }
        round
    }
}

async fn closed(
    server: &Server,
    prompts: &[String],
    clients: u32,
) -> Vec<anyhow::Result<Answered>> {
    let next = AtomicUsize::new(0);
    let client = || async {
        let mut answers = Vec::new();
        while let Some(prompt) = prompts.get(next.fetch_add(1, Ordering::Relaxed)) {
            answers.push(server.ask(prompt, None).await);
        }
        answers
    };
    let all = join_all((0..clients).map(|_| client())).await;
    all.into_iter().flatten().collect()
}

async fn open(
    server: &Server,
    prompts: &[String],
    rate: f64,
    seed: u64,
) -> Vec<anyhow::Result<Answered>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut at = Duration::ZERO;
    let asking = prompts.iter().map(|prompt| {
        let draw: f64 = rng.random();
        let after = at;
        at += Duration::from_secs_f64(-(1.0 - draw).ln() / rate);
        async move {
            tokio::time::sleep(after).await;
            server.ask(prompt, None).await
        }
    });
    join_all(asking.collect::<Vec<_>>()).await
}
