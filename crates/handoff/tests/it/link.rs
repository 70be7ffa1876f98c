//! A handoff over a link in memory: connections, one after the other, between a driven sender and a driven
//! receiver. The link delivers bytes when a seed says so, and cuts, half-closes, flips, loses,
//! repeats, exchanges or delays bytes where a fault says so, or lets a frame overtake another one; both
//! ends then do what a pump does: they give up the connection and go on over a new one.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use tandem_handoff::codec::{Codec, Decoder, Encoder};
use tandem_handoff::frame::{HEADER_BYTES, Header, Kind};
use tandem_handoff::limits::MAX_SESSIONS;
use tandem_handoff::message::{Hello, RefusalCode, Refuse, control_frame, parse};
use tandem_handoff::permit::{Sessions, Tickets};
use tandem_handoff::receiver::{Expectation, Inbound, Receiver, ReceiverError, Step, Terms};
use tandem_handoff::segment::Cutter;
use tandem_handoff::sender::{Outbound, Outgoing, Sender, SenderState};
use tandem_handoff::{Contract, KvBlock, PerSection, Section};

use super::driver::{HANDOFF, TICKET, expectation, frame, have_page, offer, receipt};
use super::pipe::{Fault, Harm, Pipe, Way};

/// What is handed over, and how.
#[derive(Clone)]
pub struct Case {
    pub contract: Contract,
    pub kv_end: u32,
    pub blocks: Vec<KvBlock>,
    /// Full rows that the receiver holds before.
    pub have: u32,
    pub credit_bytes: u64,
    /// Codecs of the blocks, in turn.
    pub codecs: Vec<Codec>,
    pub faults: Vec<Fault>,
    /// Which end gives up, and when so many things have happened: the sender forward.
    pub cancel: Option<(Way, usize)>,
    /// Blocks of the first connection are opened before their planes exist, several at a time.
    pub streamed: bool,
    /// Order of everything that has no order of its own.
    pub seed: u64,
}

/// Without the rows.
impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let blocks: Vec<_> = self.blocks.iter().map(|b| (b.section, &b.tokens)).collect();
        f.debug_struct("Case")
            .field("window", &self.contract.window)
            .field("layers", &self.contract.layers)
            .field("kv_end", &self.kv_end)
            .field("blocks", &blocks)
            .field("have", &self.have)
            .field("credit_bytes", &self.credit_bytes)
            .field("codecs", &self.codecs)
            .field("faults", &self.faults)
            .field("cancel", &self.cancel)
            .field("growing", &self.streamed)
            .field("seed", &self.seed)
            .finish()
    }
}

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    Committed,
    /// The link broke before the sender had read the first accept: nothing was sent.
    NotStarted,
    /// An end has given up, and the other one has not heard of it.
    Cancelled,
    /// An end has refused what the other one sent, or was told that the other one gives up.
    Refused(String),
}

/// What happened.
#[derive(Debug)]
pub struct Report {
    pub end: End,
    /// In the order in which they were applied.
    pub applied: Vec<KvBlock>,
    /// Blocks that the sender opened: generation, section, first token, one past the last.
    pub opened: Vec<(usize, Section, u32, u32)>,
    /// Of all connections, in the order in which they were made.
    pub traffic: Vec<Traffic>,
    /// First token of each section that was missing at each resume.
    pub resumed: Vec<PerSection<u32>>,
    /// Most bytes that the receiver held at once.
    pub most_staged: u64,
    /// Frames of connections of the past that the receiver was given after it had gone on.
    pub stale_frames: usize,
    /// How often bytes came that had been delayed until nothing else could happen.
    pub released: usize,
    /// Segments that were written while another block of their connection was in progress.
    pub mixed: usize,
    /// How many things happened.
    pub actions: usize,
}

impl Report {
    /// What this direction of one of the first connections carried.
    pub fn first(&self, way: Way) -> &Traffic {
        let mut traffic = self.traffic.iter();
        let here = |t: &&Traffic| (t.generation, t.way) == (0, way);
        traffic.find(here).unwrap()
    }
}

/// What one direction of a connection carried.
#[derive(Debug)]
pub struct Traffic {
    pub generation: usize,
    pub way: Way,
    /// Bytes that arrived.
    pub arrived: usize,
    /// Bytes that the other end has taken.
    pub read: usize,
    /// Every frame that was written, and where.
    pub frames: Vec<(Kind, Range<usize>)>,
}

struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ (z >> 31)) % n as u64).unwrap()
    }
}

/// A block that is being written.
struct Job {
    cutter: Cutter,
    block: KvBlock,
    codec: Codec,
    /// How many of its planes exist.
    planes: usize,
    /// Its first segment has been written.
    begun: bool,
}

/// One connection, and what its two ends know of it.
struct Connection {
    generation: usize,
    forward: Pipe,
    backward: Pipe,
    outbound: Outbound,
    jobs: Vec<Job>,
    inbound: Option<Inbound>,
    /// A header that was read and checked, whose payload has not arrived.
    forward_header: Option<Header>,
}

impl Connection {
    fn cut(&mut self) {
        self.forward.end();
        self.backward.end();
    }
}

/// What reading from a connection came to.
enum Read {
    /// Not enough bytes yet.
    Nothing,
    Progress,
    /// The connection is of no use any more.
    Broken,
}

/// Runs a handoff to its end.
pub fn hand_over(case: &Case) -> Report {
    let mut world = World::new(case);
    let end = world.run();
    let mut traffic = Vec::new();
    for c in world.connections {
        for (way, pipe) in [(Way::Forward, c.forward), (Way::Backward, c.backward)] {
            traffic.push(Traffic {
                generation: c.generation,
                way,
                arrived: pipe.arrived.len(),
                read: pipe.read,
                frames: pipe.frames,
            });
        }
    }
    Report {
        end,
        traffic,
        applied: world.applied,
        opened: world.opened,
        resumed: world.resumed,
        most_staged: world.most_staged,
        stale_frames: world.stale_frames,
        released: world.released,
        mixed: world.mixed,
        actions: world.actions,
    }
}

struct World<'a> {
    case: &'a Case,
    random: SplitMix,
    connections: Vec<Connection>,
    generation: usize,
    /// False once the sender has seen that the connections are broken.
    sender_up: bool,
    sender: Sender,
    encoder: Encoder,
    decoder: Decoder,
    tickets: Tickets<&'static str, Expectation>,
    sessions: Sessions,
    receiver: Option<Receiver>,
    /// False once the receiver has given up.
    receiver_up: bool,
    expected: Expectation,
    applied: Vec<KvBlock>,
    given: VecDeque<KvBlock>,
    receipt_sent: bool,
    opened: Vec<(usize, Section, u32, u32)>,
    resumed: Vec<PerSection<u32>>,
    most_staged: u64,
    stale_frames: usize,
    released: usize,
    mixed: usize,
    refused: Option<String>,
    actions: usize,
}

/// Who may use the ticket.
const PEER: &str = "prefill node";
const EXPIRES: Duration = Duration::from_secs(20);

const ACTIONS: usize = 12;

/// More than any handoff of the tests needs: one that goes on for longer waits for ever.
const MAX_ACTIONS: usize = 1 << 20;

impl<'a> World<'a> {
    fn new(case: &'a Case) -> Self {
        let (sender, hello) = Sender::new(offer(&case.contract, case.kv_end)).unwrap();
        let expected = expectation(&case.contract, case.kv_end);
        let mut tickets = Tickets::default();
        tickets.issue(TICKET.into(), HANDOFF, PEER, EXPIRES, expected.clone());
        let mut world = Self {
            case,
            random: SplitMix(case.seed),
            connections: Vec::new(),
            generation: 0,
            sender_up: true,
            sender,
            encoder: Encoder::new().unwrap(),
            decoder: Decoder::new().unwrap(),
            tickets,
            sessions: Sessions::default(),
            receiver: None,
            receiver_up: true,
            expected,
            applied: Vec::new(),
            given: VecDeque::new(),
            receipt_sent: false,
            opened: Vec::new(),
            resumed: Vec::new(),
            most_staged: 0,
            stale_frames: 0,
            released: 0,
            mixed: 0,
            refused: None,
            actions: 0,
        };
        let outbound = world.sender.outbound();
        world.connect(outbound, &hello);
        world
    }

    fn connect(&mut self, outbound: Outbound, first: &[u8]) {
        let generation = self.generation;
        let pipe = |way| {
            let faults = self.case.faults.iter();
            let here = faults.filter(|f| (f.generation, f.way) == (generation, way));
            Pipe::with(here.map(|f| (f.at, f.harm)).collect())
        };
        let mut connection = Connection {
            generation,
            forward: pipe(Way::Forward),
            backward: pipe(Way::Backward),
            outbound,
            jobs: Vec::new(),
            inbound: None,
            forward_header: None,
        };
        connection.forward.write(first);
        self.connections.push(connection);
    }

    fn run(&mut self) -> End {
        let mut cancelled = false;
        loop {
            if let Some((end, at)) = self.case.cancel
                && at == self.actions
                && !cancelled
            {
                cancelled = true;
                self.cancel(end);
            }
            // Everything that can happen, from a random place on: the first that does.
            let first = self.random.below(ACTIONS);
            let happened = (0..ACTIONS).any(|i| self.act((first + i) % ACTIONS));
            self.actions += usize::from(happened);
            assert!(self.actions < MAX_ACTIONS, "no end: {:?}", self.case.faults);
            if let Some(receiver) = &self.receiver {
                self.most_staged = self.most_staged.max(receiver.staged_bytes());
            }
            if let Some(reason) = self.refused.take() {
                let over = self.receiver.as_ref().is_some_and(|r| r.over().is_some());
                assert!(over || self.sender.state() == SenderState::Failed);
                return End::Refused(reason);
            }
            let confirmed = self.receiver.as_ref().is_some_and(Receiver::confirmed);
            if self.sender.state() == SenderState::Committed && confirmed {
                return End::Committed;
            }
            if happened || self.release() {
                continue;
            }
            if cancelled {
                return End::Cancelled;
            }
            if self.sender_up {
                // Bytes that do not come leave silence, for which a pump has a limit.
                let loses = |f: &Fault| matches!(f.harm, Harm::Lose(_) | Harm::Overtake);
                let silence = self.case.faults.iter().any(loses);
                assert!(silence, "stalled: {:?}", self.sender);
                self.sender_down();
            } else {
                return End::NotStarted;
            }
        }
    }

    /// What was delayed comes now; false if nothing was.
    fn release(&mut self) -> bool {
        let before = self.released;
        for c in &mut self.connections {
            for pipe in [&mut c.forward, &mut c.backward] {
                self.released += usize::from(std::mem::take(&mut pipe.delayed));
            }
        }
        self.released > before
    }

    /// One end gives up: it tells the other one if it can, and does nothing more.
    fn cancel(&mut self, end: Way) {
        if end == Way::Backward {
            self.tickets.revoke(TICKET);
            self.sessions = Sessions::default();
            self.receiver_up = false;
            self.given.clear();
            return self.say(|receiver| Some(receiver.abort("cancelled")));
        }
        let frame = self.sender.abort("cancelled");
        assert_eq!(self.sender.state(), SenderState::Failed);
        let was_up = std::mem::take(&mut self.sender_up);
        let generation = self.generation;
        for c in self
            .connections
            .iter_mut()
            .filter(|c| c.generation == generation)
        {
            c.jobs.clear();
            if was_up {
                c.forward.write(&frame);
            }
        }
    }

    fn sender_goes_on(&mut self) -> bool {
        if self.sender_up {
            return false;
        }
        let Ok(hello) = self.sender.reconnect() else {
            return false;
        };
        assert!(self.generation <= self.case.faults.len() + 1, "no end");
        self.generation += 1;
        self.sender_up = true;
        self.receipt_sent = false;
        let outbound = self.sender.outbound();
        self.connect(outbound, &hello);
        true
    }

    fn act(&mut self, action: usize) -> bool {
        match action {
            0..3 => self.deliver(),
            3 => self.sender_reads(),
            4 => self.sender_opens(),
            5 => self.sender_cuts(),
            6 => self.sender_controls(),
            7 => self.receiver_reads(),
            8 => self.receiver_gives_out(),
            9 => self.sender_goes_on(),
            10 => self.receiver_stages(),
            _ => self.receiver_applies(),
        }
    }

    fn pick(&mut self, fits: impl Fn(&Connection) -> bool) -> Option<usize> {
        let all: Vec<usize> = (0..self.connections.len())
            .filter(|&i| fits(&self.connections[i]))
            .collect();
        (!all.is_empty()).then(|| all[self.random.below(all.len())])
    }

    /// Some bytes arrive: one, a few, or all that are under way.
    fn deliver(&mut self) -> bool {
        let Some(i) = self.pick(|c| c.forward.can_deliver() || c.backward.can_deliver()) else {
            return false;
        };
        let n = [1, 7, HEADER_BYTES, 1 << 20][self.random.below(4)];
        let c = &mut self.connections[i];
        let back = self.random.below(2) == 1 || !c.forward.can_deliver();
        let pipe = if back && c.backward.can_deliver() {
            &mut c.backward
        } else {
            &mut c.forward
        };
        if pipe.deliver(n) {
            c.cut();
        }
        true
    }

    /// The sender gives up all connections.
    fn sender_down(&mut self) {
        self.sender_up = false;
        let generation = self.generation;
        let mine = self.connections.iter_mut();
        for c in mine.filter(|c| c.generation == generation) {
            c.cut();
            c.jobs.clear();
        }
    }

    fn sender_reads(&mut self) -> bool {
        if !self.sender_up {
            return false;
        }
        let generation = self.generation;
        let Some(i) = self.pick(|c| {
            let readable = c.backward.unread().len() >= HEADER_BYTES || c.backward.ended;
            c.generation == generation && readable
        }) else {
            return false;
        };
        match self.sender_takes(i) {
            Read::Nothing => false,
            Read::Progress => true,
            Read::Broken => {
                self.sender_down();
                true
            }
        }
    }

    fn sender_takes(&mut self, i: usize) -> Read {
        let c = &mut self.connections[i];
        let unread = &c.backward.arrived[c.backward.read..];
        let Some((head, tail)) = unread.split_first_chunk::<HEADER_BYTES>() else {
            return ended(c.backward.ended);
        };
        let Ok(header) = Header::parse(head) else {
            return Read::Broken;
        };
        let Some((payload, _)) = tail.split_at_checked(header.payload_len as usize) else {
            return ended(c.backward.ended);
        };
        let before = self.sender.acknowledged();
        let result = self.sender.receive(&header, payload);
        c.backward.read += HEADER_BYTES + payload.len();
        match result {
            Ok(()) => {
                let acked = self.sender.acknowledged();
                assert!(acked.full >= before.full && acked.window >= before.window);
                Read::Progress
            }
            Err(_) if self.sender.state() != SenderState::Failed => Read::Broken,
            Err(e) => {
                self.refused = Some(format!("sender: {e}"));
                Read::Progress
            }
        }
    }

    /// The next block is given to the connection if it has none, or if blocks grow.
    fn sender_opens(&mut self) -> bool {
        if !self.sender_up || self.sender.state() != SenderState::Streaming {
            return false;
        }
        let generation = self.generation;
        let streamed = self.case.streamed && generation == 0;
        let idle = |c: &Connection| c.generation == generation && (streamed || c.jobs.is_empty());
        let (Some(block), Some(i)) = (self.next_block(), self.pick(idle)) else {
            return false;
        };
        let may_open = if streamed {
            self.sender.may_stream(block.bytes())
        } else {
            self.sender.may_send(block.bytes())
        };
        if !may_open {
            return false;
        }
        let codec = self.case.codecs[self.opened.len() % self.case.codecs.len()];
        let (section, tokens) = (block.section, block.tokens.clone());
        let (opened, planes) = if streamed {
            (self.sender.open_streamed(section, tokens.clone()), 0)
        } else {
            (self.sender.open(&block), block.planes.len())
        };
        let cutter = opened.unwrap();
        let acked = self.sender.acknowledged()[section];
        assert!(tokens.start >= acked, "sent again");
        self.opened
            .push((generation, section, tokens.start, tokens.end));
        self.connections[i].jobs.push(Job {
            cutter,
            block,
            codec,
            planes,
            begun: false,
        });
        true
    }

    /// What has not been sent of one of the sections: a block, or the rest of one whose start the
    /// receiver has.
    fn next_block(&mut self) -> Option<KvBlock> {
        let mut sections = Section::ALL;
        if self.random.below(2) == 0 {
            sections.reverse();
        }
        let next = self.sender.next();
        sections.into_iter().find_map(|section| {
            let next = next[section];
            let mut blocks = self.case.blocks.iter();
            let block = blocks.find(|b| b.section == section && b.tokens.contains(&next))?;
            Some(block.part(next..block.tokens.end))
        })
    }

    /// One segment of one block is written, or one more plane of it exists.
    fn sender_cuts(&mut self) -> bool {
        let Some(i) = self.pick(|c| !c.jobs.is_empty()) else {
            return false;
        };
        let c = &mut self.connections[i];
        let count = c.jobs.len();
        let at = if count > 1 {
            self.random.below(count)
        } else {
            0
        };
        // Blocks of a section begin in order, and become whole in order.
        let (section, begun) = (c.jobs[at].block.section, c.jobs[at].begun);
        let is_last = c.jobs[at].cutter.left() <= 1;
        let must_be_first = |j: &Job| j.block.section == section && (is_last || !begun && !j.begun);
        let at = c.jobs[..at].iter().position(must_be_first).unwrap_or(at);
        let job = &mut c.jobs[at];
        let planes = &job.block.planes[..job.planes];
        let segment = job.cutter.next(planes, job.codec, &mut self.encoder);
        match segment.unwrap() {
            Some(segment) => {
                let frame = frame(&mut c.outbound, &segment);
                c.forward.write(&frame);
                job.begun = true;
                self.mixed += usize::from(count > 1);
            }
            None if job.cutter.left() > 0 => job.planes += 1,
            None => {
                let job = c.jobs.remove(at);
                self.sender.close(job.block.bytes());
            }
        }
        true
    }

    /// Commit, receipt, or now and then a beat.
    fn sender_controls(&mut self) -> bool {
        let state = self.sender.state();
        let live = matches!(state, SenderState::Streaming | SenderState::Committing);
        if !self.sender_up || !live {
            return false;
        }
        let generation = self.generation;
        let mut message = None;
        if state == SenderState::Streaming {
            message = self.sender.commit().ok();
        } else if !self.receipt_sent {
            self.receipt_sent = true;
            message = Some(self.sender.receipt(&receipt()).unwrap());
        }
        let beat = message.is_none();
        if beat && self.random.below(8) > 0 {
            return false;
        }
        let Some(i) = self.pick(|c| c.generation == generation) else {
            return false;
        };
        let c = &mut self.connections[i];
        let frame = c.outbound.control(&message.unwrap_or(Outgoing::beat()));
        c.forward.write(&frame);
        // A beat alone is no progress.
        !beat
    }

    fn receiver_reads(&mut self) -> bool {
        let up = self.receiver_up;
        let Some(i) = self.pick(|c| {
            // Who has given up only says so to those who come.
            if !up && c.inbound.is_some() {
                return false;
            }
            let enough = match &c.forward_header {
                Some(header) => c.forward.unread().len() >= header.payload_len as usize,
                None => c.forward.unread().len() >= HEADER_BYTES,
            };
            enough || (c.forward.ended && !c.backward.ended)
        }) else {
            return false;
        };
        let read = if self.connections[i].inbound.is_some() {
            self.receiver_takes(i)
        } else {
            self.receiver_greets(i)
        };
        match read {
            Read::Nothing => false,
            Read::Progress => true,
            Read::Broken => {
                // It gives up the connection of this generation.
                let generation = self.connections[i].generation;
                let mut happened = false;
                for c in &mut self.connections {
                    if c.generation == generation {
                        happened |= !c.backward.ended || !c.forward.unread().is_empty();
                        c.cut();
                        c.forward.read = c.forward.arrived.len();
                        c.forward_header = None;
                    }
                }
                happened
            }
        }
    }

    /// The first frame of a connection.
    fn receiver_greets(&mut self, i: usize) -> Read {
        let c = &self.connections[i];
        let Some((head, tail)) = c.forward.unread().split_first_chunk::<HEADER_BYTES>() else {
            return ended(c.forward.ended);
        };
        let Ok(header) = Header::parse(head) else {
            return Read::Broken;
        };
        let Some((payload, _)) = tail.split_at_checked(header.payload_len as usize) else {
            return ended(c.forward.ended);
        };
        if header.check_payload(payload).is_err() {
            return Read::Broken;
        }
        let length = HEADER_BYTES + payload.len();
        let (answer, inbound) = match header.kind {
            Kind::Hello => {
                let hello: Hello = parse(Kind::Hello, payload).unwrap();
                self.receiver_hello(i, &hello)
            }
            // The first frame was lost.
            _ => return Read::Broken,
        };
        let c = &mut self.connections[i];
        c.forward.read += length;
        c.inbound = inbound;
        c.backward.write(&answer);
        Read::Progress
    }

    fn receiver_hello(&mut self, i: usize, hello: &Hello) -> (Vec<u8>, Option<Inbound>) {
        let generation = self.connections[i].generation;
        let said = self.sessions.is_session(&hello.ticket);
        let (other, now) = (HANDOFF + 1, Duration::ZERO);
        let mut take = |handoff, now| self.tickets.take(&hello.ticket, handoff, &PEER, now);
        assert!(take(other, now).is_none() && take(HANDOFF, EXPIRES).is_none());
        let first = take(HANDOFF, now);
        if !said && first.is_none() {
            // An honest sender names nothing else.
            assert!(!self.receiver_up, "{}", hello.ticket);
            let refuse = Refuse {
                code: RefusalCode::Ticket,
                message: "cancelled".into(),
                differences: Vec::new(),
            };
            let frame = control_frame(Kind::Refuse, HANDOFF, 0, &refuse).unwrap();
            return (frame, None);
        }
        let kv_end = Receiver::check_hello(hello, &self.expected).unwrap();
        let case = self.case;
        let session = format!("session {generation}");
        let said = said.then_some(hello.ticket.as_str());
        for old in self.sessions.renew(said, session.clone()) {
            assert!(!self.sessions.is_session(&old));
        }
        assert!(said.is_none_or(|said| self.sessions.is_session(said)));
        assert!(self.sessions.all().count() <= MAX_SESSIONS);
        let terms = |have| Terms {
            session: session.clone(),
            credit_bytes: case.credit_bytes,
            have_page: have_page(&case.contract, case.kv_end, have),
        };
        if let Some(expected) = first {
            let (receiver, accept) =
                Receiver::accept(&expected, kv_end, case.have, &terms(case.have)).unwrap();
            let inbound = receiver.inbound();
            self.receiver = Some(receiver);
            return (accept, Some(inbound));
        }
        let mut receiver = self.receiver.take().unwrap();
        // Everything whole is applied first; the acknowledgements are lost.
        while let Some(arrived) = receiver.next_block() {
            self.given.push_back(arrived.block);
        }
        while let Some(block) = self.given.pop_front() {
            let _ = receiver.applied();
            self.applied.push(block);
        }
        let have = receiver.next();
        self.resumed.push(have);
        let accept = receiver.resume(&terms(have.full)).unwrap();
        let main = receiver.inbound();
        self.receiver = Some(receiver);
        self.feed_stale(generation);
        (accept, Some(main))
    }

    /// What the connections of the past still hold is refused, and does no harm.
    fn feed_stale(&mut self, generation: usize) {
        let Some(receiver) = &mut self.receiver else {
            return;
        };
        let old = self.connections.iter_mut();
        for c in old.filter(|c| c.generation < generation) {
            c.cut();
            let unread = &c.forward.arrived[c.forward.read..];
            if let (Some(inbound), Some((head, _))) =
                (&mut c.inbound, unread.split_first_chunk::<HEADER_BYTES>())
                && let Ok(header) = Header::parse(head)
            {
                let error = inbound.check(receiver, &header).unwrap_err();
                assert_eq!(error, ReceiverError::Over);
                assert_eq!(inbound.complete(receiver), Err(ReceiverError::Over));
                self.stale_frames += 1;
            }
            assert!(receiver.over().is_none());
            c.forward.read = c.forward.arrived.len();
            c.forward_header = None;
        }
    }

    fn receiver_takes(&mut self, i: usize) -> Read {
        let c = &mut self.connections[i];
        let (Some(receiver), Some(inbound)) = (&mut self.receiver, &mut c.inbound) else {
            return Read::Broken;
        };
        let unread = &c.forward.arrived[c.forward.read..];
        let Some(header) = c.forward_header else {
            let Some((head, _)) = unread.split_first_chunk::<HEADER_BYTES>() else {
                return ended(c.forward.ended);
            };
            let Ok(header) = Header::parse(head) else {
                return Read::Broken;
            };
            c.forward.read += HEADER_BYTES;
            if let Err(e) = inbound.check(receiver, &header) {
                self.refused = Some(format!("receiver: {e}"));
                return Read::Progress;
            }
            c.forward_header = Some(header);
            return Read::Progress;
        };
        let Some((payload, _)) = unread.split_at_checked(header.payload_len as usize) else {
            return ended(c.forward.ended);
        };
        let result = inbound.frame(receiver, &mut self.decoder, &header, payload);
        c.forward.read += payload.len();
        c.forward_header = None;
        if result.is_ok() {
            self.heard();
        }
        match result {
            Ok(Step::Receipt(got)) => assert_eq!(got, receipt()),
            Ok(Step::Wait | Step::Block | Step::Commit) => {}
            Err(e) if e.is_damage() => return Read::Broken,
            Err(e) => self.refused = Some(format!("receiver: {e}")),
        }
        self.say(|receiver| receiver.finish(Duration::ZERO));
        Read::Progress
    }

    /// The sender has shown that it has read the last accept: nothing before it is good any more.
    fn heard(&mut self) {
        for old in self.sessions.heard() {
            assert!(!self.sessions.is_session(&old));
        }
        assert_eq!(self.sessions.all().count(), 1);
    }

    fn receiver_gives_out(&mut self) -> bool {
        if !self.receiver_up {
            return false;
        }
        let Some(receiver) = &mut self.receiver else {
            return false;
        };
        let Some(arrived) = receiver.next_block() else {
            return false;
        };
        self.given.push_back(arrived.block);
        true
    }

    /// Blocks of the window are acknowledged.
    fn receiver_stages(&mut self) -> bool {
        if !self.receiver_up {
            return false;
        }
        let Some(frame) = self.receiver.as_mut().and_then(Receiver::ack_window) else {
            return false;
        };
        self.say(|_| Some(frame));
        self.say(|r| r.finish(Duration::ZERO));
        true
    }

    fn receiver_applies(&mut self) -> bool {
        if self.random.below(8) == 0 && !self.given.is_empty() {
            self.say(tandem_handoff::receiver::Receiver::beat);
        }
        let Some(block) = self.given.pop_front() else {
            return false;
        };
        self.say(Receiver::applied);
        self.applied.push(block);
        self.say(|receiver| receiver.finish(Duration::ZERO));
        true
    }

    /// Writes a frame to the connection over which the receiver was last greeted.
    fn say(&mut self, frame: impl FnOnce(&mut Receiver) -> Option<Vec<u8>>) {
        let frame = self.receiver.as_mut().and_then(frame);
        let last = self.connections.iter_mut().rfind(|c| c.inbound.is_some());
        if let Some((frame, last)) = frame.zip(last) {
            last.backward.write(&frame);
        }
    }
}

const fn ended(ended: bool) -> Read {
    if ended { Read::Broken } else { Read::Nothing }
}
