//! The requests around a run, one after the other: topics and groups made and deleted, settings and offsets asked for.
//!
//! Role: a blocking client of a broker or name server. Invariant: every wait has a limit. It works with any broker that
//! speaks remoting, so it asks for nothing that only this one has.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use remoting::bodies::{
    Body, ClusterInfo, HeartbeatData, ProducerData, SubscriptionGroupConfig, TopicConfig, TopicConfigList,
};
use remoting::frame::LENGTH_BYTES;
use remoting::{Command, RequestCode, ResponseCode};

/// Topics that are made by one request.
const TOPICS_AT_ONCE: usize = 500;
/// From so many on, topics are made several at once.
const MANY_TOPICS: usize = 8;
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// A connection to a server.
pub struct Admin {
    stream: TcpStream,
    address: SocketAddr,
    next_opaque: i32,
}

/// The first address of a `host:port`. Errors: there is none.
pub fn resolve(address: &str) -> Result<SocketAddr> {
    let found = address.to_socket_addrs().with_context(|| format!("{address:?} is no host:port"))?;
    found.into_iter().next().with_context(|| format!("{address:?} has no address"))
}

impl Admin {
    /// Connects. Errors: nobody answers within `patience`.
    pub fn connect(address: SocketAddr, patience: Duration) -> Result<Admin> {
        let stream =
            TcpStream::connect_timeout(&address, patience).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Admin { stream, address, next_opaque: 1 })
    }

    /// The answer to a request, whatever its code.
    ///
    /// # Errors
    /// The connection ended, or no answer came in time.
    pub fn ask(&mut self, mut request: Command) -> Result<Command> {
        request.opaque = self.next_opaque;
        self.next_opaque += 1;
        let (code, address) = (request.code, self.address);
        self.exchange(&request).with_context(|| format!("request {code} to {address}"))
    }

    fn exchange(&mut self, request: &Command) -> Result<Command> {
        self.stream.write_all(&request.to_frame())?;
        loop {
            let mut frame = vec![0; LENGTH_BYTES];
            self.stream.read_exact(&mut frame).context("no answer")?;
            let length = u32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize;
            ensure!(length <= MAX_ANSWER_BYTES, "an answer of {length} bytes");
            frame.resize(LENGTH_BYTES + length, 0);
            self.stream.read_exact(&mut frame[LENGTH_BYTES..]).context("an answer that ends early")?;
            let answer = Command::decode(&frame)?;
            // Brokers ask their clients things too.
            if answer.is_response() && answer.opaque == request.opaque {
                return Ok(answer);
            }
        }
    }

    /// The answer when it is a success.
    ///
    /// # Errors
    /// As [`Admin::ask`], and an answer with another code.
    pub fn ok(&mut self, request: Command) -> Result<Command> {
        let code = request.code;
        let answer = self.ask(request)?;
        if answer.code != ResponseCode::Success.to_i32() {
            bail!(
                "{} refused request {code} with code {}: {}",
                self.address,
                answer.code,
                answer.remark.unwrap_or_default()
            );
        }
        Ok(answer)
    }

    /// The settings of a broker; empty when it does not tell them.
    ///
    /// # Errors
    /// As [`Admin::ask`].
    pub fn settings(&mut self) -> Result<BTreeMap<String, String>> {
        let answer = self.ask(Command::request(RequestCode::GetBrokerConfig, 0))?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let pairs = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
        Ok(pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect())
    }

    /// The address of a master that a name server knows: that of the named broker, or of the first.
    ///
    /// # Errors
    /// It knows none.
    pub fn broker(&mut self, name: Option<&str>) -> Result<String> {
        let answer = self.ok(Command::request(RequestCode::GetBrokerClusterInfo, 0))?;
        let cluster = ClusterInfo::decode(&answer.body).context("reading the list of brokers")?;
        let found = cluster
            .broker_addr_table
            .values()
            .filter(|broker| name.is_none_or(|name| broker.broker_name == name))
            .find_map(|broker| broker.broker_addrs.get(&0));
        found.cloned().with_context(|| match name {
            Some(name) => format!("the name server {} knows no broker {name}", self.address),
            None => format!("the name server {} knows no broker", self.address),
        })
    }

    /// Makes topics with so many queues.
    ///
    /// # Errors
    /// The broker refuses one.
    pub fn create_topics(&mut self, topics: &[String], queues: u32) -> Result<()> {
        let queues = i32::try_from(queues)?;
        if topics.len() > MANY_TOPICS {
            for some in topics.chunks(TOPICS_AT_ONCE) {
                let configs = some.iter().map(|topic| TopicConfig::new(topic.as_str(), queues)).collect();
                let list = TopicConfigList { topic_config_list: configs };
                let request = Command::request(RequestCode::UpdateAndCreateTopicList, 0).with_body(list.encode());
                let answer = self.ask(request)?;
                if answer.code == ResponseCode::RequestCodeNotSupported.to_i32() {
                    // An older broker.
                    some.iter().try_for_each(|topic| self.create_topic(topic, queues))?;
                    continue;
                }
                ensure!(answer.code == 0, "topics were refused: {}", answer.remark.unwrap_or_default());
            }
            return Ok(());
        }
        topics.iter().try_for_each(|topic| self.create_topic(topic, queues))
    }

    fn create_topic(&mut self, topic: &str, queues: i32) -> Result<()> {
        let request = Command::request(RequestCode::UpdateAndCreateTopic, 0)
            .with_field("topic", topic)
            .with_field("defaultTopic", "TBW102")
            .with_field("readQueueNums", queues)
            .with_field("writeQueueNums", queues)
            .with_field("perm", 6)
            .with_field("topicFilterType", "SINGLE_TAG")
            .with_field("topicSysFlag", 0)
            .with_field("order", false);
        self.ok(request).map(drop)
    }

    /// Makes a consumer group.
    ///
    /// # Errors
    /// The broker refuses it.
    pub fn create_group(&mut self, group: &str) -> Result<()> {
        let body = SubscriptionGroupConfig::new(group).encode();
        self.ok(Command::request(RequestCode::UpdateAndCreateSubscriptiongroup, 0).with_body(body)).map(drop)
    }

    /// Registers producer groups by a heartbeat. They last as long as this connection.
    ///
    /// # Errors
    /// The broker refuses it.
    pub fn register_producer(&mut self, client: &str, group: &str) -> Result<()> {
        let data = HeartbeatData {
            client_id: client.into(),
            producer_data_set: vec![ProducerData { group_name: group.into() }],
            ..HeartbeatData::default()
        };
        self.ok(Command::request(RequestCode::HeartBeat, 0).with_body(data.encode())).map(drop)
    }

    /// Deletes a topic of a broker; one that is not there is no error.
    ///
    /// # Errors
    /// As [`Admin::ok`].
    pub fn delete_topic(&mut self, topic: &str) -> Result<()> {
        self.ok(Command::request(RequestCode::DeleteTopicInBroker, 0).with_field("topic", topic)).map(drop)
    }

    /// Makes a name server forget a topic.
    ///
    /// # Errors
    /// As [`Admin::ok`].
    pub fn forget_topic(&mut self, topic: &str) -> Result<()> {
        self.ok(Command::request(RequestCode::DeleteTopicInNamesrv, 0).with_field("topic", topic)).map(drop)
    }

    /// Deletes a consumer group with its offsets.
    ///
    /// # Errors
    /// As [`Admin::ok`].
    pub fn delete_group(&mut self, group: &str) -> Result<()> {
        let request = Command::request(RequestCode::DeleteSubscriptiongroup, 0)
            .with_field("groupName", group)
            .with_field("cleanOffset", true);
        self.ok(request).map(drop)
    }

    /// The offset behind the last message of a queue.
    ///
    /// # Errors
    /// As [`Admin::ok`].
    pub fn max_offset(&mut self, topic: &str, queue: u32) -> Result<u64> {
        let request =
            Command::request(RequestCode::GetMaxOffset, 0).with_field("topic", topic).with_field("queueId", queue);
        let answer = self.ok(request)?;
        Ok(answer.ext.i64("offset")?.max(0) as u64)
    }
}
