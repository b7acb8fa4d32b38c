//! Registration with the name servers, on the control thread (tokio): at start, whenever the topics change, each period, and at once
//! when a name server's connection was lost.
//!
//! One task for each name server, each with a connection of its own, so that a silent one delays no other. The owner hears of a version
//! when every name server has it or has failed to take it.

use crate::config::BrokerOptions;
use crate::owner::topics::topic_json_with_perm;
use crate::owner::version::DataVersion;
use crate::snapshot::{PERM_READ, PERM_WRITE, Table, Topic};
use remoting::json::JsonRef;
use remoting::{Command, Json, RequestCode, ResponseCode};
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// How long one exchange with a name server may take.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long goodbye may take.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
/// Pauses after failures: doubled up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Largest answer of a name server that is read, bytes.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// What is told to the name servers.
#[derive(Clone, Debug)]
pub struct RegisteredTopics {
    /// All topics.
    pub topics: Table<Topic>,
    /// Version of `topics.json`.
    pub data_version: DataVersion,
    /// `brokerPermission`: takes bits from each topic's permission.
    pub broker_permission: u32,
}

/// What the control thread says to the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlMessage {
    /// The name servers know this version of the topics, or have failed to take it.
    Registered {
        /// As in `OwnerAction::TopicsChanged`.
        version: u64,
    },
    /// A name server has order configurations of these topics.
    OrderTopics(Vec<String>),
}

type Announcement = Option<(u64, Arc<RegisteredTopics>)>;

/// The owner's end of the channel to the control thread. Never blocks; only the newest topics count.
#[derive(Clone, Debug)]
pub struct ControlSender {
    topics: watch::Sender<Announcement>,
    ready: watch::Sender<bool>,
}

/// The control thread's end.
#[derive(Clone, Debug)]
pub struct ControlReceiver {
    topics: watch::Receiver<Announcement>,
    ready: watch::Receiver<bool>,
}

/// A channel from the owner to the control thread.
pub fn channel() -> (ControlSender, ControlReceiver) {
    let ((topics_in, topics), (ready_in, ready)) = (watch::channel(None), watch::channel(false));
    (ControlSender { topics: topics_in, ready: ready_in }, ControlReceiver { topics, ready })
}

impl ControlSender {
    /// The topics changed.
    pub fn topics(&self, version: u64, topics: RegisteredTopics) {
        self.topics.send_replace(Some((version, Arc::new(topics))));
    }

    /// Every core has its metadata: connections may come.
    pub fn ready(&self) {
        self.ready.send_replace(true);
    }
}

impl ControlReceiver {
    /// Returns when every core has its metadata. `false`: the broker is gone before.
    pub async fn ready(&mut self) -> bool {
        self.ready.wait_for(|ready| *ready).await.is_ok()
    }

    /// Returns when the first registration of the topics is due. `false`: the broker is gone before.
    pub async fn announced(&mut self) -> bool {
        self.topics.wait_for(Option::is_some).await.is_ok()
    }
}

/// Registers until `stop` resolves, then says goodbye to the name servers. `post` takes messages to core 0.
pub async fn run(
    options: Arc<BrokerOptions>,
    receiver: ControlReceiver,
    post: impl Fn(ControlMessage),
    stop: impl Future<Output = ()>,
) {
    let servers = options.name_servers.clone();
    let (attempted_in, mut attempted) = mpsc::channel(64);
    let (stop_in, stopped) = watch::channel(false);
    let mut tasks = tokio::task::JoinSet::new();
    for (index, address) in servers.iter().enumerate() {
        let server = NameServer {
            index,
            address: address.clone(),
            options: options.clone(),
            topics: receiver.topics.clone(),
            attempted: attempted_in.clone(),
            stopped: stopped.clone(),
            connection: None,
            failing: false,
        };
        tasks.spawn(server.run());
    }
    drop(attempted_in);
    let mut versions = vec![0; servers.len()];
    let mut told = 0;
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            attempt = attempted.recv(), if !servers.is_empty() => {
                let Some(Attempt { index, version, order_topics }) = attempt else { break };
                if !order_topics.is_empty() {
                    post(ControlMessage::OrderTopics(order_topics));
                }
                versions[index] = version;
                let all = versions.iter().copied().min().unwrap_or(0);
                if all > told {
                    told = all;
                    post(ControlMessage::Registered { version: all });
                }
            }
        }
    }
    stop_in.send_replace(true);
    attempted.close();
    while tasks.join_next().await.is_some() {}
}

/// A name server was told a version of the topics, or has failed to take it.
struct Attempt {
    index: usize,
    version: u64,
    /// Topics that it has order configurations of, as far as it said.
    order_topics: Vec<String>,
}

/// The link to one name server.
struct NameServer {
    index: usize,
    address: String,
    options: Arc<BrokerOptions>,
    topics: watch::Receiver<Announcement>,
    attempted: mpsc::Sender<Attempt>,
    stopped: watch::Receiver<bool>,
    connection: Option<TcpStream>,
    /// Said already that it fails.
    failing: bool,
}

impl NameServer {
    async fn run(mut self) {
        let mut stopped = self.stopped.clone();
        tokio::select! {
            _ = stopped.changed() => return,
            announced = self.topics.wait_for(Option::is_some) => if announced.is_err() { return },
        }
        let mut pause = FIRST_PAUSE;
        let mut registered = None;
        while !*stopped.borrow() {
            let Some((version, topics)) = self.topics.borrow_and_update().clone() else { return };
            let outcome = self.register_or_skip(&topics, registered == Some(version)).await;
            let mut order_topics = Vec::new();
            let wait = match outcome {
                Ok(topics) => {
                    order_topics = topics;
                    registered = Some(version);
                    pause = FIRST_PAUSE;
                    Duration::from_millis(self.options.register_period_ms)
                }
                Err(error) => {
                    self.connection = None;
                    if !std::mem::replace(&mut self.failing, true) {
                        tracing::warn!(name_server = self.address, %error, "registration failed; it is tried again");
                    }
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    pause
                }
            };
            let attempt = Attempt { index: self.index, version, order_topics };
            if self.attempted.send(attempt).await.is_err() {
                break;
            }
            tokio::select! {
                _ = stopped.changed() => break,
                changed = self.topics.changed() => if changed.is_err() { break },
                () = tokio::time::sleep(wait) => {}
                () = lost(self.connection.as_ref()) => {
                    self.connection = None;
                    tokio::time::sleep(FIRST_PAUSE).await;
                }
            }
        }
        let _ = timeout(GOODBYE_TIMEOUT, self.unregister()).await;
    }

    /// Registers; a periodic one of the same version may be skipped when the name server says that it knows it. Gives the
    /// topics that the name server has order configurations of.
    async fn register_or_skip(&mut self, topics: &RegisteredTopics, same: bool) -> io::Result<Vec<String>> {
        if same && !self.options.force_register && !self.is_changed(topics).await? {
            return Ok(Vec::new());
        }
        let answer = self.exchange(registration(&self.options, topics)).await?;
        if answer.code != ResponseCode::Success.to_i32() {
            let remark = answer.remark.unwrap_or_default();
            return Err(io::Error::other(format!("refused with code {}: {remark}", answer.code)));
        }
        if std::mem::take(&mut self.failing) {
            tracing::info!(name_server = self.address, "registered again");
        }
        Ok(order_topics(&answer.body))
    }

    /// Asks whether our version differs from the one that the name server has (322).
    async fn is_changed(&mut self, topics: &RegisteredTopics) -> io::Result<bool> {
        let request =
            identity(RequestCode::QueryDataVersion, &self.options).with_body(topics.data_version.to_json().to_vec());
        let answer = self.exchange(request).await?;
        let known = JsonRef::parse(&answer.body).map(DataVersion::from_json);
        Ok(answer.code != 0 || answer.ext.boolean("changed") != Some(false) || known != Ok(topics.data_version))
    }

    async fn unregister(&mut self) -> io::Result<()> {
        if self.connection.is_some() {
            self.exchange(identity(RequestCode::UnregisterBroker, &self.options)).await?;
        }
        Ok(())
    }

    async fn exchange(&mut self, request: Command) -> io::Result<Command> {
        let exchange = async {
            let stream = match &mut self.connection {
                Some(stream) => stream,
                none => {
                    let stream = TcpStream::connect(&self.address).await?;
                    stream.set_nodelay(true)?;
                    none.insert(stream)
                }
            };
            stream.write_all(&request.to_frame()).await?;
            loop {
                let answer = read_command(stream).await?;
                if answer.is_response() && answer.opaque == request.opaque {
                    return Ok(answer);
                }
            }
        };
        let answer = timeout(EXCHANGE_TIMEOUT, exchange).await;
        answer.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time")))
    }
}

/// The topics of the order configurations in the answer to a registration.
fn order_topics(body: &[u8]) -> Vec<String> {
    let table = JsonRef::parse(body);
    table.map(|body| body.get("table").entries().map(|(topic, _)| topic.string()).collect()).unwrap_or_default()
}

/// Returns when the connection has ended, or holds what nobody asked for; never without one.
async fn lost(connection: Option<&TcpStream>) {
    match connection {
        Some(stream) => {
            // Not `readable`: that may still remember the answer that was read last.
            let _ = stream.peek(&mut [0; 1]).await;
        }
        None => std::future::pending().await,
    }
}

async fn read_command(stream: &mut TcpStream) -> io::Result<Command> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    let len = u32::from_be_bytes(length) as usize;
    if len > MAX_ANSWER_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer of impossible length"));
    }
    let mut frame = vec![0; 4 + len];
    frame[..4].copy_from_slice(&length);
    stream.read_exact(&mut frame[4..]).await?;
    Command::decode(&frame).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// A request with the four fields that name a broker.
fn identity(code: RequestCode, options: &BrokerOptions) -> Command {
    Command::request(code, next_opaque())
        .with_field("brokerName", &options.broker_name)
        .with_field("brokerAddr", options.address)
        .with_field("clusterName", &options.cluster_name)
        .with_field("brokerId", options.broker_id)
}

fn next_opaque() -> i32 {
    use std::sync::atomic::{AtomicI32, Ordering};
    static NEXT: AtomicI32 = AtomicI32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The registration (103) of these topics.
pub fn registration(options: &BrokerOptions, topics: &RegisteredTopics) -> Command {
    let allowed = topics.broker_permission | !(PERM_READ | PERM_WRITE);
    let table = topics.topics.sorted().into_iter();
    let table = Json::map(table.map(|(n, t)| (n.to_string(), topic_json_with_perm(t, t.perm & allowed))));
    let mapping = DataVersion { timestamp_ms: topics.data_version.timestamp_ms, ..DataVersion::default() };
    let wrapper = Json::bean([
        ("dataVersion", topics.data_version.to_json()),
        ("mappingDataVersion", mapping.to_json()),
        ("topicConfigTable", table),
        ("topicQueueMappingDetailMap", Json::Object(Vec::new())),
        ("topicQueueMappingInfoMap", Json::Object(Vec::new())),
    ]);
    let body =
        Json::bean([("filterServerList", Json::List(Vec::new())), ("topicConfigSerializeWrapper", wrapper)]).to_vec();
    let crc = crc32fast::hash(&body) & 0x7FFF_FFFF;
    identity(RequestCode::RegisterBroker, options)
        .with_field("haServerAddr", options.ha_address)
        .with_field("enableActingMaster", false)
        .with_field("compressed", false)
        .with_field("bodyCrc32", crc)
        .with_body(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_configurations_come_with_the_answer() {
        assert_eq!(order_topics(br#"{"table":{"a":"b:4","c":"b:2;d:1"}}"#), ["a", "c"]);
        for nothing in [&b""[..], b"{}", b"{\"table\":null}", b"[1]", b"x", b"{\"table\":{}}"] {
            assert_eq!(order_topics(nothing), Vec::<String>::new());
        }
    }
}
