//! Requests that the broker passes on to a client and whose answer it passes back: 223 (221 at the client), 307, 309.

use super::answer::{Asker, Outcome};
use super::clients::Client;
use super::{Owner, OwnerAction, Refusal, ReplyMessage, Then, Turn};
use crate::gather::{Gathered, ShardAnswer, ShardAsk};
use message::PhysicalOffset;
use message::ids::OffsetMessageId;
use reactor::ConnectionId;
use remoting::json::JsonRef;
use remoting::{Command, ExtFields, Json, RequestCode, ResponseCode};
use std::collections::BTreeMap;
use store::ShardId;

/// How long a client may take, µs.
const CALL_TIMEOUT_US: u64 = 10_000_000;
/// And for each client's share of a group's status.
const STATUS_TIMEOUT_US: u64 = 5_000_000;
/// Calls that may be open at once; one more is answered SYSTEM_BUSY.
const MAX_CALLS: usize = 1_024;
/// Java's client answers these from this version on (V3_1_8_SNAPSHOT).
const LEAST_VERSION: i32 = 85;

/// The open calls.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    opaque: i32,
    open: BTreeMap<i32, Call>,
    statuses: BTreeMap<u64, Status>,
    next_status: u64,
}

#[derive(Debug)]
struct Call {
    conn: ConnectionId,
    deadline_us: u64,
    then: AfterCall,
}

#[derive(Debug)]
pub(crate) enum AfterCall {
    /// The client's answer is the answer.
    Pass { asker: Asker, group: String, client_id: String },
    /// One part of a group's status.
    Status { id: u64, client_id: String },
    /// The client took a reply, or did not.
    Reply { message: Box<ReplyMessage>, client_id: String },
}

/// A group's status, collected from its members.
#[derive(Debug)]
struct Status {
    asker: Asker,
    missing: usize,
    table: Vec<(String, Json)>,
}

/// 309, waiting for the message.
#[derive(Debug)]
pub(crate) struct Directly {
    asker: Asker,
    group: String,
    client_id: String,
    ext: ExtFields,
}

impl Calls {
    /// A number for a request of the broker's own.
    pub fn next_opaque(&mut self) -> i32 {
        self.opaque = self.opaque.wrapping_add(1) & i32::MAX;
        self.opaque
    }

    /// Whether one more may be open.
    pub fn has_room(&self) -> bool {
        self.open.len() < MAX_CALLS
    }
}

impl Owner {
    /// 307.
    pub(super) fn running_info(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        command: &Command,
    ) -> Result<Outcome, Refusal> {
        let (group, id) = (command.ext.text("consumerGroup")?, command.ext.text("clientId")?);
        self.pass_on(
            turn,
            asker,
            group,
            id,
            command.ext.clone(),
            command.body.clone(),
            RequestCode::GetConsumerRunningInfo,
        )?;
        Ok(Outcome::Later)
    }

    /// 309: the message is looked up here and goes along.
    pub(super) fn consume_directly(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        command: &Command,
    ) -> Result<Outcome, Refusal> {
        let ext = &command.ext;
        let group = ext.text("consumerGroup")?.to_owned();
        let client_id = ext.text("clientId")?.to_owned();
        let bad = || Refusal::new(ResponseCode::SystemError, "msgId is no offset message id");
        let offset = OffsetMessageId::parse(ext.text("msgId")?.as_bytes()).ok_or_else(bad)?.offset;
        let shard = ShardId::of(offset).filter(|s| s.0 < self.shards).ok_or_else(|| no_message(offset))?;
        let mut fields = ext.clone();
        fields.set("brokerName", self.options.broker_name.clone());
        if let Some(topic) = ext.get("topic").and_then(|t| self.topics.get(t)) {
            fields.set("topicSysFlag", topic.sys_flag.to_string());
        }
        if let Some(settings) = self.groups.get(&group) {
            fields.set("groupSysFlag", settings.sys_flag.to_string());
        }
        let call = Directly { asker: asker.clone(), group, client_id, ext: fields };
        self.gather(turn, vec![(shard, ShardAsk::RecordAt(offset))], Then::Directly(call))?;
        Ok(Outcome::Later)
    }

    pub(super) fn directly_with(&mut self, turn: &mut Turn<'_>, call: Directly, gathered: Gathered) {
        let record = gathered.answers.into_iter().find_map(|(_, answer)| match answer {
            Some(ShardAnswer::Record(record)) => record,
            _ => None,
        });
        let Directly { asker, group, client_id, ext } = call;
        let done = match record {
            Some(record) => {
                let code = RequestCode::ConsumeMessageDirectly;
                self.pass_on(turn, &asker, &group, &client_id, ext, record.to_vec(), code)
            }
            None => Err(Refusal::new(ResponseCode::SystemError, "no message at this id")),
        };
        if let Err(refusal) = done {
            asker.answer(asker.refuse(&refusal), turn.out);
        }
    }

    /// 223.
    pub(super) fn consumer_status(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        command: &Command,
    ) -> Result<Outcome, Refusal> {
        let ext = &command.ext;
        let (topic, group) = (ext.text("topic")?, ext.text("group")?);
        let only = ext.get("clientAddr").filter(|c| !c.trim().is_empty());
        let offline = || {
            let remark = format!("No Any Consumer online in the consumer group: [{group}]");
            Refusal::new(ResponseCode::SystemError, remark)
        };
        let members = self.clients.group(group).ok_or_else(offline)?.clients();
        let asked: Vec<Client> = members.into_iter().filter(|c| only.is_none_or(|o| o == &*c.id)).cloned().collect();
        let id = self.calls.next_status;
        self.calls.next_status += 1;
        let status = Status { asker: asker.clone(), missing: asked.len(), table: Vec::new() };
        self.calls.statuses.insert(id, status);
        for client in &asked {
            let call = Command::request(RequestCode::GetConsumerStatusFromClient, 0)
                .with_field("group", group)
                .with_field("topic", topic);
            let then = AfterCall::Status { id, client_id: client.id.to_string() };
            self.call(turn, client.conn, STATUS_TIMEOUT_US, call, then);
        }
        self.finish_status(turn, id);
        Ok(Outcome::Later)
    }

    /// A client answered something that it was asked.
    pub(super) fn client_reply(&mut self, turn: &mut Turn<'_>, conn: ConnectionId, command: Command) {
        let known = self.calls.open.get(&command.opaque).is_some_and(|c| c.conn == conn);
        let Some(call) = known.then(|| self.calls.open.remove(&command.opaque)).flatten() else { return };
        match call.then {
            AfterCall::Pass { asker, .. } => {
                let response = Command { body: command.body, ext: command.ext, remark: command.remark, ..asker.ok() };
                asker.answer(Command { code: command.code, ..response }, turn.out);
            }
            AfterCall::Status { id, client_id } => {
                let table = JsonRef::parse(&command.body).map(|body| Json::from_ref(body.get("messageQueueTable")));
                let entry = match table {
                    Ok(table @ Json::Object(_)) if command.code == 0 => Some((client_id, table)),
                    _ => None,
                };
                self.status_part(turn, id, entry);
            }
            AfterCall::Reply { message, client_id } => {
                self.reply_ended(turn, &message, &client_id, command.code == ResponseCode::Success.to_i32());
            }
        }
    }

    /// The client of open calls is gone.
    pub(super) fn calls_of_closed(&mut self, turn: &mut Turn<'_>, conn: ConnectionId) {
        let gone: Vec<i32> = self.calls.open.iter().filter(|(_, c)| c.conn == conn).map(|(o, _)| *o).collect();
        self.fail(turn, gone, ResponseCode::SystemError, "Exception: the connection was closed");
    }

    pub(super) fn expire_calls(&mut self, turn: &mut Turn<'_>) {
        let now_us = turn.now.mono_us;
        let late: Vec<i32> = self.calls.open.iter().filter(|(_, c)| c.deadline_us <= now_us).map(|(o, _)| *o).collect();
        self.fail(turn, late, ResponseCode::ConsumeMsgTimeout, "Timeout: no answer in time");
    }

    fn fail(&mut self, turn: &mut Turn<'_>, calls: Vec<i32>, code: ResponseCode, why: &str) {
        for opaque in calls {
            match self.calls.open.remove(&opaque).map(|c| c.then) {
                Some(AfterCall::Pass { asker, group, client_id }) => {
                    let refusal = Refusal::new(code, format!("consumer <{group}> <{client_id}> {why}"));
                    asker.answer(asker.refuse(&refusal), turn.out);
                }
                Some(AfterCall::Status { id, .. }) => self.status_part(turn, id, None),
                Some(AfterCall::Reply { message, client_id }) => self.reply_ended(turn, &message, &client_id, false),
                None => {}
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one request that is passed on")]
    fn pass_on(
        &mut self,
        turn: &mut Turn<'_>,
        asker: &Asker,
        group: &str,
        client_id: &str,
        ext: ExtFields,
        body: Vec<u8>,
        code: RequestCode,
    ) -> Result<(), Refusal> {
        let offline = || {
            let remark = format!("The Consumer <{group}> <{client_id}> not online");
            Refusal::new(ResponseCode::SystemError, remark)
        };
        let client = self.clients.member(group, client_id).ok_or_else(offline)?;
        if client.version < LEAST_VERSION {
            let remark = format!("The Consumer <{client_id}> Version <{}> too low to finish", client.version);
            return Err(Refusal::new(ResponseCode::SystemError, remark));
        }
        if !self.calls.has_room() {
            return Err(Refusal::new(ResponseCode::SystemBusy, "too many requests to clients are open"));
        }
        let conn = client.conn;
        let command = Command { ext, body, ..Command::request(code, 0) };
        let then = AfterCall::Pass { asker: asker.clone(), group: group.to_owned(), client_id: client_id.to_owned() };
        self.call(turn, conn, CALL_TIMEOUT_US, command, then);
        Ok(())
    }

    pub(super) fn call(
        &mut self,
        turn: &mut Turn<'_>,
        conn: ConnectionId,
        timeout_us: u64,
        mut command: Command,
        then: AfterCall,
    ) {
        command.opaque = self.calls.next_opaque();
        let call = Call { conn, deadline_us: turn.now.mono_us + timeout_us, then };
        self.calls.open.insert(command.opaque, call);
        turn.out.push(OwnerAction::Push { conn, command });
    }

    fn status_part(&mut self, turn: &mut Turn<'_>, id: u64, part: Option<(String, Json)>) {
        if let Some(status) = self.calls.statuses.get_mut(&id) {
            status.missing -= 1;
            status.table.extend(part);
        }
        self.finish_status(turn, id);
    }

    fn finish_status(&mut self, turn: &mut Turn<'_>, id: u64) {
        if self.calls.statuses.get(&id).is_some_and(|s| s.missing == 0)
            && let Some(status) = self.calls.statuses.remove(&id)
        {
            let body = Json::bean([("consumerTable", Json::map(status.table))]);
            status.asker.answer(status.asker.json(&body), turn.out);
        }
    }
}

fn no_message(offset: PhysicalOffset) -> Refusal {
    Refusal::new(ResponseCode::SystemError, format!("no message at the offset {}", offset.0))
}
