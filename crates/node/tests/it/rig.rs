//! Two nodes with a relay between them, and handoffs over it.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_cluster::{Authority, Security};
use tandem_engine::fake::{Call, FakeConfig};
use tandem_handoff::Section;
use tandem_handoff::frame::Kind;
use tandem_node::Limits;
use tandem_proto::{PrefillEvent, Role};
use tokio::task::JoinHandle;

use super::cluster::{
    Answer, Calls, Deal, Outcome, Reuse, Setup, TestNode, finish, limits, prefill_end, prompt,
};
use super::proxy::{Fault, Proxy};

/// Kinds and places of frames.
pub type Frames = Vec<(Kind, Range<u64>)>;

/// What a rig is like.
pub struct Plan {
    /// The engine of the prefill node.
    pub sending: FakeConfig,
    /// The engine of the decode node.
    pub receiving: FakeConfig,
    pub limits: Limits,
    /// True if the nodes speak TLS.
    pub tls: bool,
    pub deal: Deal,
}

impl Plan {
    /// A request of some chunks, whose KV nobody has.
    pub fn new(config: &FakeConfig, limits: Limits) -> Self {
        let chunk = config.microbatch_tokens;
        let mut deal = Deal::new(&prompt(chunk * 4 + 3), chunk);
        Reuse::Off.set(&mut deal.terms);
        Self {
            sending: config.clone(),
            receiving: config.clone(),
            limits,
            tls: false,
            deal,
        }
    }

    pub async fn start(mut self) -> Rig {
        let expected = self.deal.expected(&self.sending).await;
        let computed = Calls::of(&mut self.sending);
        let applied = Calls::of(&mut self.receiving);
        let [first, second] = if self.tls {
            let authority = Authority::create().unwrap();
            [(); 2].map(|()| Security::Tls(Arc::new(authority.issue().unwrap())))
        } else {
            [Security::Plaintext, Security::Plaintext]
        };
        let id = |security: &Security| security.own_id().map(|id| id.to_string());
        self.deal.peers = id(&first).zip(id(&second));
        let setup = |role, config, security| Setup {
            limits: self.limits,
            security,
            mortal: true,
            ..Setup::new(role, config)
        };
        let prefill = setup(Role::Prefill, &self.sending, first).start().await;
        let decode = setup(Role::Decode, &self.receiving, second).start().await;
        let proxy = Proxy::to(decode.port).await;
        self.deal.via = Some(proxy.port);
        Rig {
            prefill,
            decode,
            proxy,
            computed,
            applied,
            deal: self.deal,
            expected,
        }
    }
}

/// Two nodes with a relay between them, and a request of some chunks.
pub struct Rig {
    pub prefill: TestNode,
    pub decode: TestNode,
    pub proxy: Proxy,
    pub computed: Calls,
    pub applied: Calls,
    pub deal: Deal,
    pub expected: Vec<u32>,
}

impl Rig {
    /// With time enough to go on after a break.
    pub async fn new(config: &FakeConfig) -> Self {
        let waits = Limits {
            resume: Duration::from_secs(5),
            ..limits()
        };
        Plan::new(config, waits).start().await
    }

    /// Kinds and places of the frames of an undisturbed handoff.
    pub async fn record(&self) -> [Frames; 2] {
        self.run(&[]).await.whole(&self.expected, "undisturbed");
        self.computed.take();
        self.applied.take();
        self.proxy.frames(0)
    }

    /// A handoff whose connections have these faults.
    pub async fn run(&self, faults: &[Fault]) -> Outcome {
        self.proxy.next(faults);
        self.deal.run(&self.prefill, &self.decode).await
    }

    /// Begins a handoff whose connections have these faults.
    pub async fn begin(&self, faults: &[Fault]) -> Going {
        self.proxy.next(faults);
        let begun = Instant::now();
        let (mut events, ticket) = self.deal.open(&self.decode).await;
        let request = self.deal.prefill(&ticket);
        let mut sending = self.prefill.prefill(&request).await.unwrap();
        Going {
            begun,
            answer: tokio::spawn(async move { finish(&mut events).await }),
            end: tokio::spawn(async move { prefill_end(&mut sending).await }),
        }
    }

    /// Begins a handoff and waits until its relay holds it.
    pub async fn held(&self, fault: Fault) -> Going {
        let going = self.begin(&[fault]).await;
        self.proxy.held().await;
        going
    }

    /// Nothing is left over on either node.
    pub async fn clean(&self) {
        self.decode.clean().await;
        self.prefill.clean().await;
    }

    pub fn kv_end(&self) -> u32 {
        self.deal.tokens.len() as u32 - 1
    }

    /// The end of what was put into the cache, where the engine can go on from it: with windows nowhere
    /// before the window has come.
    pub fn came_to(&self, config: &FakeConfig) -> u32 {
        let (mut end, mut window) = (0, config.window == 0);
        let calls = self.applied.take();
        // What is put back after a prefill did not come.
        let computed = |call: &&Call| matches!(call, Call::Prefill { .. });
        for call in calls.iter().take_while(|call| !computed(call)) {
            match call {
                Call::Import {
                    section: Section::Full,
                    tokens,
                    ..
                } => end = tokens.end,
                Call::Import { .. } => window = true,
                _ => {}
            }
        }
        if window { end } else { 0 }
    }

    /// Every token was computed once, and put into the cache once and in order.
    pub fn once(&self, what: &str) {
        let kv_end = self.kv_end();
        assert_eq!(self.computed.prefilled(), kv_end, "{what}: computed twice");
        let mut at = 0;
        let mut windows = 0;
        for call in self.applied.take() {
            match call {
                Call::Import {
                    section: Section::Full,
                    tokens,
                    ..
                } => {
                    assert_eq!(tokens.start, at, "{what}: out of order or twice");
                    at = tokens.end;
                }
                Call::Import { .. } => windows += 1,
                _ => {}
            }
        }
        assert_eq!(at, kv_end, "{what}");
        assert!(windows <= 1, "{what}: two windows");
    }
}

/// A handoff that is going on, as the coordinator sees it.
pub struct Going {
    pub begun: Instant,
    answer: JoinHandle<Answer>,
    end: JoinHandle<PrefillEvent>,
}

impl Going {
    /// The client leaves, and with it the coordinator. Gives what the prefill node says then.
    pub async fn cancel_request(self) -> JoinHandle<PrefillEvent> {
        self.answer.abort();
        let _ = self.answer.await;
        self.end
    }

    /// The coordinator leaves the prefill. Gives the answer of the decode node.
    pub async fn cancel_prefill(self) -> JoinHandle<Answer> {
        self.end.abort();
        let _ = self.end.await;
        self.answer
    }

    /// The last word of the prefill node, and the answer that will come.
    pub async fn end(self) -> (PrefillEvent, JoinHandle<Answer>) {
        (self.end.await.unwrap(), self.answer)
    }

    /// The answer, whatever becomes of the prefill node.
    pub fn answer(self) -> JoinHandle<Answer> {
        self.answer
    }
}
