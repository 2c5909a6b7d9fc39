/** Streams the output of a background process, kept and live, and passes the client's input to it. */
import type { InputSink, OutputSink, OutputStart, ProcessInput, RunningStream, Started } from "../../agent/agent.ts";
import { AttachClientMessage, AttachServerMessage, decodeAttachMessage } from "../../wire/exec.ts";
import { AttachQuery, ProcessParams } from "../../wire/process.ts";
import { addAuditDetails, recordStart } from "../audit-trail.ts";
import { onClientGone } from "../client-gone.ts";
import type { App } from "../route.ts";
import { selectorOf } from "../routes/processes.ts";
import type { RouteContext, Section } from "../section.ts";
import { AttachedStdin } from "./attached-stdin.ts";
import { ClientStdin } from "./client-input.ts";
import type { Connection, ConnectionHandlers } from "./connection.ts";
import { OutputRelay } from "./output-relay.ts";
import { socketMessages } from "./upgrades.ts";

export const attachSocketSection: Section = { chapter: "Execution", register };

function register(app: App, { services: { capsules, audit }, sockets }: RouteContext): void {
  app.get(
    "/capsules/:id/processes/:selector/stream",
    {
      config: {
        action: "processes",
        socket: true,
        audit: { action: "process.attach" },
        refuses: ["quota_exceeded", "agent_error", "conflict"],
      },
      exposeHeadRoute: false,
      schema: {
        operationId: "attachToProcess",
        summary: "Attach to a background process (WebSocket)",
        params: ProcessParams,
        querystring: AttachQuery,
        ...socketMessages(AttachClientMessage, AttachServerMessage),
      },
    },
    async (request, reply) => {
      const { identity, params, query } = request;
      addAuditDetails(request, { subject: params.selector });
      sockets.check(request);
      const selector = selectorOf(params.selector);
      const start = startOf(query.from);
      const accept = (openInput: (sink: InputSink) => ProcessInput) => {
        const connection = sockets.accept(request, reply, params.id, {});
        recordStart(audit, request, params.selector);
        const relay = new OutputRelay(connection, query, start === "start" ? 0 : start);
        connection.handle(new AttachHandlers(connection, relay, openInput));
        return { relay, closed: connection.closed };
      };
      await capsules.use(identity.teamId, params.id, "processes", (agent) =>
        attached(
          // Agents of earlier releases know only this one.
          (sink) =>
            start === "now" && query.offsets !== "1"
              ? agent.attach(selector, sink)
              : agent.attachFrom(selector, start, sink),
          ({ pid }) => accept((sink) => agent.input({ pid }, sink)),
          (cancel) => onClientGone(reply, cancel),
        ),
      );
    },
  );
}

function startOf(from = "now"): OutputStart {
  return from === "start" || from === "now" ? from : Number(from);
}

class AttachHandlers implements ConnectionHandlers {
  readonly #connection: Connection;
  readonly #relay: OutputRelay;
  readonly #target: AttachedStdin;
  readonly #stdin: ClientStdin;

  constructor(connection: Connection, relay: OutputRelay, openInput: (sink: InputSink) => ProcessInput) {
    this.#connection = connection;
    this.#relay = relay;
    this.#target = new AttachedStdin(connection, openInput);
    this.#stdin = new ClientStdin(this.#target, (problem) => this.#refuse(problem));
  }

  onText(text: string): void {
    const decoded = decodeAttachMessage(text);
    if ("problem" in decoded) this.#refuse(decoded.problem);
    else this.#stdin.take(decoded.message);
  }

  onBinary(): void {
    this.#refuse("a message must be a text frame");
  }

  onClosed(): void {
    this.#relay.drop();
    this.#target.release();
  }

  #refuse(problem: string): void {
    this.#connection.send({ type: "error", data: problem } satisfies AttachServerMessage);
  }
}

/**
 * Accepts the socket when the process is found, so that a refusal before is an HTTP response. Resolves when the socket has
 * closed.
 */
function attached(
  attach: (sink: OutputSink) => RunningStream,
  accept: (process: Started) => { relay: OutputRelay; closed: Promise<void> },
  onAbandoned: (cancel: () => void) => void,
): Promise<void> {
  return new Promise((resolve, reject) => {
    let relay: OutputRelay | undefined;
    const stream = attach({
      started(process) {
        try {
          const accepted = accept(process);
          relay = accepted.relay;
          resolve(accepted.closed);
        } catch (error) {
          stream.cancel();
          reject(error);
          return;
        }
        relay.follow(stream);
        relay.started(process);
      },
      positioned: (offset) => relay?.positioned(offset),
      output: (channel, chunk) => relay?.output(channel, chunk),
      exited: (exit) => relay?.exited(exit),
      failed: (error) => (relay === undefined ? reject(error) : relay.failed(error)),
    });
    onAbandoned(() => {
      if (relay !== undefined) return;
      stream.cancel();
      reject(new Error("the client hung up"));
    });
  });
}
