//! The resolver of the guest: questions by UDP and TCP, and their answers.

use super::conversation::Said;
use super::dns::{self, Odd, Question};
use super::flow::Purpose;
use super::flows::Slot;
use super::owners::{Protocol, Uid};
use super::packet::{self, Key};
use super::questions::{Asker, Pending};
use super::serving::Gateway;
use super::wire;

impl Gateway {
    pub(super) fn take_question(&mut self, datagram: &packet::Datagram) {
        let Key {
            source: client,
            destination: server,
        } = datagram.key;
        match dns::read(datagram.payload) {
            Ok(question) => {
                let owner = self.owners.of(Protocol::Udp, client.port());
                self.ask(question, Asker::Udp { client, server }, owner);
            }
            Err(Odd::Refused(answer)) => {
                self.outer.write(&packet::datagram(server, client, &answer));
            }
            Err(Odd::Silent) => {}
        }
    }

    fn ask(&mut self, question: Question, asker: Asker, owner: Uid) {
        if self.questions.has(&asker, &question) {
            return;
        }
        if !self.questions.has_place(owner) {
            return self.answer(&question, asker, dns::SERVER_FAILURE, &[]);
        }
        let (stream, deadline_ns) = (self.resolve(&question), self.relay_deadline());
        self.questions.add(Pending {
            question,
            asker,
            owner,
            stream,
            deadline_ns,
        });
    }

    pub(super) fn answer(
        &mut self,
        question: &Question,
        asker: Asker,
        rcode: u8,
        records: &[wire::Record],
    ) {
        match asker {
            Asker::Udp { client, server } => {
                let message = question.answer(rcode, records, question.udp_bytes());
                self.outer
                    .write(&packet::datagram(server, client, &message));
            }
            Asker::Tcp(slot) => {
                let deadline_ns = self.idle_deadline();
                let flow = self.flows.get(slot).map(|flow| &mut flow.purpose);
                if let Some(Purpose::Resolver(talk)) = flow {
                    talk.deadline_ns = deadline_ns;
                    talk.say(&question.answer(rcode, records, usize::from(u16::MAX)));
                    self.queue(slot);
                }
            }
        }
    }

    pub(super) fn begin_conversation(&mut self, slot: Slot) {
        let deadline_ns = self.idle_deadline();
        let flow = self.flows.get(slot).map(|flow| &mut flow.purpose);
        if let Some(Purpose::Resolver(talk)) = flow {
            talk.deadline_ns = deadline_ns;
        }
        self.queue(slot);
    }

    /// The turn of a connection to the resolver.
    pub(super) fn converse(&mut self, slot: Slot) {
        loop {
            let Some(flow) = self.flows.get(slot) else {
                return;
            };
            let is_broken = flow.converse().is_err();
            let Purpose::Resolver(talk) = &mut flow.purpose else {
                return;
            };
            let said = if is_broken {
                Said::Nonsense
            } else {
                talk.hear()
            };
            match said {
                Said::Nonsense => return self.break_off(slot),
                Said::Question(question) => {
                    talk.is_asking = true;
                    let owner = flow.owner;
                    self.ask(question, Asker::Tcp(slot), owner);
                }
                Said::Refused => {}
                Said::Nothing => {
                    let may_go_on = flow.may_converse();
                    if flow.has_conversed() {
                        drop(self.remove(slot));
                    } else if may_go_on {
                        self.queue(slot);
                    }
                    return;
                }
            }
        }
    }
}
