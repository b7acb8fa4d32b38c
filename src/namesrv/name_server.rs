//! The step machine: a request, a closed connection, a finished job or the time in, actions out.
//!
//! Role: the closed list of requests and what each does to the table, the key values and the settings. Invariants: each
//! request that wants an answer gets exactly one, at once or when its job is done; while a registration is with another
//! thread its connection is held, so that requests of one broker keep their order; one write of a file at a time, and
//! changes that arrive during it share the next.

use std::net::SocketAddr;

use hashbrown::HashMap;
use reactor::{ConnectionId, Now};
use remoting::codes::version;
use remoting::json::JsonRef;
use remoting::{Command, ExtFields, FieldError, RequestCode, ResponseCode};

use crate::answers;
use crate::config::NamesrvConfig;
use crate::kv::{KvConfig, Namespace, ORDER_NAMESPACE};
use crate::properties;
use crate::registration::{BodyError, Decoded, RegistrationBody, data_version, topic_queues};
use crate::table::{DEFAULT_TIMEOUT_MS, Identity, Registration, RouteTable, TopicQueues};

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct NsOrigin {
    /// The connection.
    pub connection: ConnectionId,
    /// Its other end.
    pub peer: SocketAddr,
}

/// What the name server wants done.
#[derive(Debug)]
pub enum NsAction {
    /// Send this on that connection, if it is still there.
    Reply(ConnectionId, Command),
    /// Run this on another thread and give the result to [`NameServer::done`] under this token.
    Run(u64, NsJob),
    /// Give no more frames of that connection until it is released.
    Hold(ConnectionId),
    /// Undo one hold.
    Release(ConnectionId),
    /// Close that connection: its broker is silent.
    Close(ConnectionId),
}

/// Work for another thread.
#[derive(Debug)]
pub enum NsJob {
    /// Decode and merge a registration.
    Register(Box<RegistrationBody>),
    /// Replace a file; the former content stays as backup.
    Write(NsFile, Vec<u8>),
}

/// The files of a name server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NsFile {
    /// Key values (`kvConfig.json`).
    KeyValues,
    /// Settings that were changed while running (`namesrv.properties`).
    Settings,
}

/// A finished job.
#[derive(Debug)]
pub enum NsDone {
    /// Of [`NsJob::Register`].
    Registered(Box<Result<Decoded, BodyError>>),
    /// Of [`NsJob::Write`]: the error's text.
    Written(Result<(), String>),
}

impl NsJob {
    /// Does the work. `write` replaces a file and is called for [`NsJob::Write`] only.
    pub fn run(self, write: impl FnOnce(NsFile, &[u8]) -> Result<(), String>) -> NsDone {
        match self {
            Self::Register(body) => NsDone::Registered(Box::new(body.decode())),
            Self::Write(file, bytes) => NsDone::Written(write(file, &bytes)),
        }
    }
}

/// Every request that a name server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NsRequest {
    PutKv,
    GetKv,
    DeleteKv,
    KvList,
    Register,
    Unregister,
    Heartbeat,
    DataVersion,
    Route,
    ClusterInfo,
    MemberGroup,
    WipeWrite,
    AddWrite,
    AllTopics,
    TopicsOfCluster,
    SystemTopics,
    UnitTopics,
    UnitSubTopics,
    UnitSubUnUnitTopics,
    DeleteTopic,
    RegisterTopic,
    UpdateConfig,
    GetConfig,
}

impl NsRequest {
    fn of(code: i32) -> Option<Self> {
        Some(match RequestCode::from_i32(code)? {
            RequestCode::PutKvConfig => Self::PutKv,
            RequestCode::GetKvConfig => Self::GetKv,
            RequestCode::DeleteKvConfig => Self::DeleteKv,
            RequestCode::GetKvlistByNamespace => Self::KvList,
            RequestCode::RegisterBroker => Self::Register,
            RequestCode::UnregisterBroker => Self::Unregister,
            RequestCode::BrokerHeartbeat => Self::Heartbeat,
            RequestCode::QueryDataVersion => Self::DataVersion,
            RequestCode::GetRouteinfoByTopic => Self::Route,
            RequestCode::GetBrokerClusterInfo => Self::ClusterInfo,
            RequestCode::GetBrokerMemberGroup => Self::MemberGroup,
            RequestCode::WipeWritePermOfBroker => Self::WipeWrite,
            RequestCode::AddWritePermOfBroker => Self::AddWrite,
            RequestCode::GetAllTopicListFromNameserver => Self::AllTopics,
            RequestCode::GetTopicsByCluster => Self::TopicsOfCluster,
            RequestCode::GetSystemTopicListFromNs => Self::SystemTopics,
            RequestCode::GetUnitTopicList => Self::UnitTopics,
            RequestCode::GetHasUnitSubTopicList => Self::UnitSubTopics,
            RequestCode::GetHasUnitSubUnunitTopicList => Self::UnitSubUnUnitTopics,
            RequestCode::DeleteTopicInNamesrv => Self::DeleteTopic,
            RequestCode::RegisterTopicInNamesrv => Self::RegisterTopic,
            RequestCode::UpdateNamesrvConfig => Self::UpdateConfig,
            RequestCode::GetNamesrvConfig => Self::GetConfig,
            _ => return None,
        })
    }
}

/// An error answer: code and remark.
struct Refusal(ResponseCode, String);

impl From<FieldError> for Refusal {
    fn from(error: FieldError) -> Self {
        Self(ResponseCode::SystemError, error.to_string())
    }
}

impl From<BodyError> for Refusal {
    fn from(error: BodyError) -> Self {
        Self(ResponseCode::SystemError, error.to_string())
    }
}

fn refuse<T>(code: ResponseCode, remark: impl ToString) -> Result<T, Refusal> {
    Err(Refusal(code, remark.to_string()))
}

/// A request that waits for a job. Its body is gone.
struct Waiting {
    connection: ConnectionId,
    request: Command,
}

enum Pending {
    Register { waiting: Waiting, registration: Box<Registration> },
    Write(NsFile),
}

/// What waits for one file: those whose change is being written, and those whose change comes with the next write.
#[derive(Default)]
struct Persisting {
    writing: bool,
    in_flight: Vec<Waiting>,
    next: Vec<Waiting>,
}

/// The name server. See the head of the file.
pub struct NameServer {
    table: RouteTable,
    kv: KvConfig,
    config: NamesrvConfig,
    /// Settings at start: only what differs from them is kept in a file.
    start_config: NamesrvConfig,
    started_us: u64,
    next_scan_us: u64,
    sequence: u64,
    pending: HashMap<u64, Pending>,
    key_values: Persisting,
    settings: Persisting,
}

impl NameServer {
    /// A name server without brokers. `start_config` are the settings of its file, `config` those with what was changed
    /// while it ran before; `key_values` is the content of `kvConfig.json`.
    #[must_use]
    pub fn new(now: Now, start_config: NamesrvConfig, config: NamesrvConfig, key_values: KvConfig) -> Self {
        Self {
            table: RouteTable::default(),
            kv: key_values,
            config,
            start_config,
            started_us: now.mono_us,
            next_scan_us: now.mono_us,
            sequence: 0,
            pending: HashMap::new(),
            key_values: Persisting::default(),
            settings: Persisting::default(),
        }
    }

    /// The key values of a file's content; `None` when it is no such file.
    #[must_use]
    pub fn read_key_values(content: &[u8]) -> Option<KvConfig> {
        let json = JsonRef::parse(content).ok().filter(JsonRef::is_object)?;
        let mut table = std::collections::BTreeMap::<String, Namespace>::new();
        for (namespace, entries) in json.get("configTable").entries() {
            let entries: Namespace = entries.entries().map(|(key, value)| (key.string(), value.string())).collect();
            if !entries.is_empty() {
                table.insert(namespace.string(), entries);
            }
        }
        Some(KvConfig::from_table(table))
    }

    /// The table, to look at.
    #[must_use]
    pub fn table(&self) -> &RouteTable {
        &self.table
    }

    /// Whether a job is under way whose result must not be lost.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Takes a request.
    pub fn request(&mut self, now: Now, origin: NsOrigin, mut request: Command, out: &mut Vec<NsAction>) {
        if request.is_response() {
            return; // nothing was asked of this peer
        }
        let Some(code) = NsRequest::of(request.code) else {
            let remark = format!(" request type {} not supported", request.code);
            return answer(origin.connection, &request, refuse(ResponseCode::RequestCodeNotSupported, remark), out);
        };
        let body = std::mem::take(&mut request.body);
        let response = match code {
            NsRequest::Register => match self.register(now, origin, &request, body, out) {
                Ok(None) => return,
                Ok(Some(response)) => Ok(response),
                Err(refusal) => Err(refusal),
            },
            NsRequest::PutKv | NsRequest::DeleteKv | NsRequest::UpdateConfig => {
                match self.change(code, &request, &body) {
                    Ok(None) => Ok(request.reply(ResponseCode::Success)),
                    Ok(Some(file)) => {
                        return self.persist(file, Waiting { connection: origin.connection, request }, out);
                    }
                    Err(refusal) => Err(refusal),
                }
            }
            NsRequest::Unregister | NsRequest::Heartbeat | NsRequest::DataVersion | NsRequest::RegisterTopic => {
                self.of_broker(code, now, origin, &request, &body)
            }
            NsRequest::GetKv | NsRequest::KvList | NsRequest::GetConfig => self.look_up(code, &request),
            NsRequest::Route => self.route(now, &request),
            NsRequest::WipeWrite | NsRequest::AddWrite | NsRequest::DeleteTopic => self.administer(code, &request),
            NsRequest::ClusterInfo
            | NsRequest::MemberGroup
            | NsRequest::AllTopics
            | NsRequest::TopicsOfCluster
            | NsRequest::SystemTopics
            | NsRequest::UnitTopics
            | NsRequest::UnitSubTopics
            | NsRequest::UnitSubUnUnitTopics => self.list(code, &request),
        };
        answer(origin.connection, &request, response, out);
    }

    /// Takes the result of a job.
    pub fn done(&mut self, now: Now, token: u64, done: NsDone, out: &mut Vec<NsAction>) {
        match (self.pending.remove(&token), done) {
            (Some(Pending::Register { waiting, registration }), NsDone::Registered(decoded)) => {
                out.push(NsAction::Release(waiting.connection));
                let response = decoded
                    .map_err(Refusal::from)
                    .and_then(|decoded| self.finish_registration(now, &waiting.request, *registration, decoded));
                answer(waiting.connection, &waiting.request, response, out);
            }
            (Some(Pending::Write(file)), NsDone::Written(result)) => {
                let persisting = self.persisting(file);
                persisting.writing = false;
                for waiting in std::mem::take(&mut persisting.in_flight) {
                    let response = match &result {
                        Ok(()) => Ok(waiting.request.reply(ResponseCode::Success)),
                        Err(error) => refuse(ResponseCode::SystemError, format!("not saved: {error}")),
                    };
                    answer(waiting.connection, &waiting.request, response, out);
                }
                self.write_next(file, out);
            }
            // A registration whose connection has closed since.
            (None, _) => {}
            (Some(_), _) => unreachable!("a job gives a result of its own kind"),
        }
    }

    /// A connection has closed: what it registered goes.
    pub fn connection_closed(&mut self, connection: ConnectionId) {
        let of_it = |pending: &Pending| matches!(pending, Pending::Register { waiting, .. } if waiting.connection == connection);
        self.pending.retain(|_, pending| !of_it(pending));
        for name in self.table.connection_closed(connection) {
            tracing::info!(broker = %name, "the connection of a broker has closed");
        }
    }

    /// Looks for silent brokers when it is time. Call it about each second.
    pub fn tick(&mut self, now: Now, out: &mut Vec<NsAction>) {
        if now.mono_us < self.next_scan_us {
            return;
        }
        self.next_scan_us = now.mono_us + self.config.scan_interval_ms * 1_000;
        let (silent, connections) = self.table.expire(now.mono_us);
        for name in silent {
            tracing::warn!(broker = %name, "a broker was silent for longer than it asked for");
        }
        out.extend(connections.into_iter().map(NsAction::Close));
    }

    fn register(
        &mut self,
        now: Now,
        origin: NsOrigin,
        request: &Command,
        bytes: Vec<u8>,
        out: &mut Vec<NsAction>,
    ) -> Result<Option<Command>, Refusal> {
        self.sequence += 1;
        let fields = &request.ext;
        let who = identity(fields)?;
        let body = RegistrationBody {
            bytes,
            crc32: fields.optional_i32("bodyCrc32")?.unwrap_or(0),
            compressed: fields.boolean("compressed").unwrap_or(false),
            version: request.version,
            base: self.table.merge_base(&who, self.config.delete_unregistered_topics),
        };
        let registration = Registration {
            who,
            ha_address: fields.get("haServerAddr").unwrap_or_default().to_owned(),
            zone: fields.get("__ZONE_NAME").map(str::to_owned),
            timeout_ms: fields.optional_i64("heartbeatTimeoutMillis")?.unwrap_or(DEFAULT_TIMEOUT_MS),
            acting_master: fields.boolean("enableActingMaster"),
            version: Default::default(),
            topic_count: 0,
            filter_servers: None,
            mappings: Vec::new(),
            sequence: self.sequence,
            connection: origin.connection,
        };
        if !body.is_large() {
            let decoded = body.decode()?;
            return self.finish_registration(now, request, registration, decoded).map(Some);
        }
        let waiting = Waiting { connection: origin.connection, request: request.clone() };
        self.pending.insert(self.sequence, Pending::Register { waiting, registration: Box::new(registration) });
        out.push(NsAction::Hold(origin.connection));
        out.push(NsAction::Run(self.sequence, NsJob::Register(Box::new(body))));
        Ok(None)
    }

    fn finish_registration(
        &mut self,
        now: Now,
        request: &Command,
        registration: Registration,
        decoded: Decoded,
    ) -> Result<Command, Refusal> {
        let Decoded { version, topic_count, filter_servers, mappings, merge } = decoded;
        let registration = Registration { version, topic_count, filter_servers, mappings, ..registration };
        let told = match self.table.register(now.mono_us, registration, merge) {
            Ok(told) => told,
            Err(refused) => return refuse(ResponseCode::SystemError, refused),
        };
        let mut response = request
            .reply(ResponseCode::Success)
            .with_optional("haServerAddr", told.ha_address)
            .with_optional("masterAddr", told.master_address);
        if self.config.return_order_config
            && let Some(entries) = self.kv.namespace(ORDER_NAMESPACE)
        {
            response.body = answers::kv_table(entries);
        }
        Ok(response)
    }

    /// Changes key values or settings. Gives the file that is to be written, if anything has changed.
    fn change(&mut self, code: NsRequest, request: &Command, body: &[u8]) -> Result<Option<NsFile>, Refusal> {
        let fields = &request.ext;
        match code {
            NsRequest::PutKv => {
                let (namespace, key, value) = (fields.text("namespace")?, fields.text("key")?, fields.text("value")?);
                match self.kv.put(namespace, key, value) {
                    Ok(()) => Ok(Some(NsFile::KeyValues)),
                    Err(error) => refuse(ResponseCode::SystemError, error),
                }
            }
            NsRequest::DeleteKv => {
                let found = self.kv.delete(fields.text("namespace")?, fields.text("key")?);
                Ok(found.then_some(NsFile::KeyValues))
            }
            _ => {
                let wanted = match properties::parse(body) {
                    Ok(wanted) => wanted,
                    Err(error) => {
                        return refuse(ResponseCode::SystemError, format!("string2Properties error: {error}"));
                    }
                };
                match self.config.changed(&wanted) {
                    Ok(changed) if changed == self.config => Ok(None),
                    Ok(changed) => {
                        self.config = changed;
                        Ok(Some(NsFile::Settings))
                    }
                    Err(error @ crate::config::SettingError::Fixed(_)) => refuse(ResponseCode::NoPermission, error),
                    Err(error) => refuse(ResponseCode::InvalidParameter, error),
                }
            }
        }
    }

    fn of_broker(
        &mut self,
        code: NsRequest,
        now: Now,
        origin: NsOrigin,
        request: &Command,
        body: &[u8],
    ) -> Result<Command, Refusal> {
        let fields = &request.ext;
        let response = request.reply(ResponseCode::Success);
        match code {
            NsRequest::Unregister => {
                let who = identity(fields)?;
                let done = self.table.unregister(&who, origin.connection);
                tracing::info!(broker = %who.name, id = who.id, peer = %origin.peer, done, "a broker unregisters");
            }
            NsRequest::Heartbeat => {
                self.table.seen(now.mono_us, fields.text("brokerName")?, fields.text("brokerAddr")?);
            }
            NsRequest::DataVersion => {
                let who = identity(fields)?;
                let asked = data_version(body)?;
                self.table.seen(now.mono_us, &who.name, &who.address);
                let known = self.table.version_of(&who.cluster, &who.name, &who.address);
                let response = response.with_field("changed", known != Some(asked));
                return Ok(response.with_body(known.map(answers::data_version).unwrap_or_default()));
            }
            _ => {
                let topic = fields.text("topic")?;
                let json =
                    JsonRef::parse(body).map_err(|error| Refusal(ResponseCode::SystemError, error.to_string()))?;
                let queues: Vec<(String, TopicQueues)> = json
                    .get("queueDatas")
                    .items()
                    .map(|item| (item.get("brokerName").string(), topic_queues(item)))
                    .collect();
                if let Err(error) = self.table.register_topic(topic, &queues) {
                    return refuse(ResponseCode::SystemError, error);
                }
            }
        }
        Ok(response)
    }

    fn look_up(&self, code: NsRequest, request: &Command) -> Result<Command, Refusal> {
        let fields = &request.ext;
        let response = request.reply(ResponseCode::Success);
        match code {
            NsRequest::GetKv => {
                let (namespace, key) = (fields.text("namespace")?, fields.text("key")?);
                match self.kv.get(namespace, key) {
                    Some(value) => Ok(response.with_field("value", value)),
                    None => {
                        let remark = format!("No config item, Namespace: {namespace} Key: {key}");
                        refuse(ResponseCode::QueryNotFound, remark)
                    }
                }
            }
            NsRequest::KvList => {
                let namespace = fields.text("namespace")?;
                match self.kv.namespace(namespace) {
                    Some(entries) => Ok(response.with_body(answers::kv_table(entries))),
                    None => refuse(ResponseCode::QueryNotFound, format!("No config item, Namespace: {namespace}")),
                }
            }
            _ => Ok(response.with_body(self.config.text().into_bytes())),
        }
    }

    fn route(&self, now: Now, request: &Command) -> Result<Command, Refusal> {
        if self.config.need_wait && now.mono_us < self.started_us + self.config.wait_s * 1_000_000 {
            return refuse(ResponseCode::SystemError, "name server not ready");
        }
        let topic = request.ext.text("topic")?;
        let Some(route) = self.table.route(topic, self.config.support_acting_master) else {
            let remark = format!("No topic route info in name server for the topic: {topic}");
            return refuse(ResponseCode::TopicNotExist, remark);
        };
        let order = if self.config.order_message_enable { self.kv.get(ORDER_NAMESPACE, topic) } else { None };
        let asked = request.ext.boolean("acceptStandardJsonOnly").unwrap_or(false);
        let standard = asked || request.version >= version::V4_9_4;
        Ok(request.reply(ResponseCode::Success).with_body(answers::route(&route, order, standard)))
    }

    fn administer(&mut self, code: NsRequest, request: &Command) -> Result<Command, Refusal> {
        let fields = &request.ext;
        let response = request.reply(ResponseCode::Success);
        match code {
            NsRequest::WipeWrite => {
                let count = self.table.set_write_permission(fields.text("brokerName")?, false);
                Ok(response.with_field("wipeTopicCount", count))
            }
            NsRequest::AddWrite => {
                let count = self.table.set_write_permission(fields.text("brokerName")?, true);
                Ok(response.with_field("addTopicCount", count))
            }
            _ => {
                let cluster = fields.get("clusterName").filter(|cluster| !cluster.is_empty());
                self.table.delete_topic(fields.text("topic")?, cluster);
                Ok(response)
            }
        }
    }

    fn list(&self, code: NsRequest, request: &Command) -> Result<Command, Refusal> {
        let allowed = match code {
            NsRequest::AllTopics => self.config.all_topic_list,
            NsRequest::ClusterInfo | NsRequest::MemberGroup | NsRequest::SystemTopics => true,
            _ => self.config.topic_list,
        };
        if !allowed {
            return refuse(ResponseCode::SystemError, "disable");
        }
        let fields = &request.ext;
        let topics = |wanted: fn(&TopicQueues) -> bool| answers::topic_list(self.table.topics(None, wanted), None);
        let body = match code {
            NsRequest::ClusterInfo => answers::cluster(self.table.brokers()),
            NsRequest::MemberGroup => {
                let (cluster, name) = (fields.get("clusterName").unwrap_or_default(), fields.text("brokerName")?);
                answers::member_group(cluster, name, self.table.broker(name).as_ref())
            }
            NsRequest::TopicsOfCluster => {
                answers::topic_list(self.table.topics(Some(fields.text("cluster")?), |_| true), None)
            }
            NsRequest::SystemTopics => {
                let names: std::collections::BTreeSet<&str> =
                    self.table.brokers().flat_map(|view| [view.cluster, view.name]).collect();
                let address = self.table.brokers().find_map(|view| view.addresses.into_values().next());
                answers::topic_list(names, address)
            }
            NsRequest::UnitTopics => topics(|queues| queues.sys_flag & UNIT != 0),
            NsRequest::UnitSubTopics => topics(|queues| queues.sys_flag & UNIT_SUB != 0),
            NsRequest::UnitSubUnUnitTopics => topics(|queues| queues.sys_flag & (UNIT | UNIT_SUB) == UNIT_SUB),
            _ => topics(|_| true),
        };
        Ok(request.reply(ResponseCode::Success).with_body(body))
    }

    fn persisting(&mut self, file: NsFile) -> &mut Persisting {
        match file {
            NsFile::KeyValues => &mut self.key_values,
            NsFile::Settings => &mut self.settings,
        }
    }

    fn persist(&mut self, file: NsFile, waiting: Waiting, out: &mut Vec<NsAction>) {
        self.persisting(file).next.push(waiting);
        self.write_next(file, out);
    }

    fn write_next(&mut self, file: NsFile, out: &mut Vec<NsAction>) {
        let persisting = self.persisting(file);
        if persisting.writing || persisting.next.is_empty() {
            return;
        }
        persisting.writing = true;
        persisting.in_flight = std::mem::take(&mut persisting.next);
        let bytes = match file {
            NsFile::KeyValues => answers::kv_file(self.kv.table()),
            NsFile::Settings => self.config.changes_since(&self.start_config).into_bytes(),
        };
        self.sequence += 1;
        self.pending.insert(self.sequence, Pending::Write(file));
        out.push(NsAction::Run(self.sequence, NsJob::Write(file, bytes)));
    }
}

/// TopicSysFlag bit: a unit topic.
const UNIT: i32 = 1;
/// TopicSysFlag bit: a topic with unit subscriptions.
const UNIT_SUB: i32 = 2;

fn identity(fields: &ExtFields) -> Result<Identity, Refusal> {
    let text = |name| match fields.text(name) {
        Ok("") => refuse(ResponseCode::SystemError, format!("the header field <{name}> is empty")),
        Ok(text) if text.len() > MAX_NAME_BYTES => refuse(
            ResponseCode::SystemError,
            format!("the header field <{name}> is longer than {MAX_NAME_BYTES} bytes"),
        ),
        Ok(text) => Ok(text.to_owned()),
        Err(error) => Err(error.into()),
    };
    Ok(Identity {
        cluster: text("clusterName")?,
        name: text("brokerName")?,
        id: fields.i64("brokerId")?,
        address: text("brokerAddr")?,
    })
}

/// Longest name or address of a broker, in bytes.
const MAX_NAME_BYTES: usize = 1_024;

fn answer(connection: ConnectionId, request: &Command, response: Result<Command, Refusal>, out: &mut Vec<NsAction>) {
    let response = response.unwrap_or_else(|Refusal(code, remark)| request.reply_error(code, remark));
    if !request.is_oneway() {
        out.push(NsAction::Reply(connection, response));
    }
}
