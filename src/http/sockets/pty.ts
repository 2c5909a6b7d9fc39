/**
 * A terminal session. The session lives in the guest: a client that goes away leaves it running, and comes back with
 * its tag.
 *
 *   (first message) ─ start ──► waiting ── started ──► talking ── exit ──► closed
 *                   └ connect ─►    └─ refused: error, fatal
 */
import type { Agent, Exit, OutputSink, PtyStream, Started } from "../../agent/agent.ts";
import { closeCodes } from "../../wire/close-codes.ts";
import {
  decodePtyMessage,
  PtyClientMessage,
  PtyServerMessage,
  type PtyStart,
  ptyDefaults,
} from "../../wire/pty-messages.ts";
import { CapsuleParams } from "../../wire/schema.ts";
import { SocketQuery } from "../../wire/ticket.ts";
import { recordBegun } from "../audit-trail.ts";
import type { App, RouteContext } from "../route.ts";
import type { Connection, ConnectionHandlers } from "./connection.ts";
import { firstMessageMs } from "./exec.ts";
import { JoinedOutput } from "./joined-output.ts";
import { socketMessages } from "./socket-messages.ts";
import type { Sockets } from "./upgrades.ts";

const pingMs = 30_000;
/** Read ahead of a program that does not read its input, so that a kill or a resize behind it gets through. */
const inputAheadMaxBytes = 1024 * 1024;

export function ptySocketRoutes(app: App, { services: { capsules, audit } }: RouteContext, sockets: Sockets): void {
  app.get(
    "/capsules/:id/pty",
    {
      config: { action: "pty", audit: "pty", socket: true, refuses: ["quota_exceeded", "agent_error"] },
      exposeHeadRoute: false,
      schema: {
        summary: "Open or rejoin a terminal (WebSocket)",
        params: CapsuleParams,
        querystring: SocketQuery,
        ...socketMessages(PtyClientMessage, PtyServerMessage),
      },
    },
    async (request, reply) => {
      const { identity, params } = request;
      sockets.check(request);
      const agent = await capsules.enter(identity.teamId, params.id, "pty");
      const line = sockets.accept(request, reply, params.id, { fatal: true });
      line.handle(new PtyConversation(line, agent, (subject) => recordBegun(audit, request, subject)));
    },
  );
}

class PtyConversation implements ConnectionHandlers, OutputSink {
  readonly #line: Connection;
  readonly #agent: Agent;
  /** Is told the command, or the tag of the session that is rejoined. */
  readonly #noteBegin: (subject: string) => void;
  readonly #silence: NodeJS.Timeout;
  readonly #pings: NodeJS.Timeout;
  #stream: PtyStream | undefined;
  readonly #joined: JoinedOutput<"pty">;
  #hasStarted = false;
  #inputAheadBytes = 0;

  constructor(line: Connection, agent: Agent, noteBegin: (subject: string) => void) {
    this.#line = line;
    this.#agent = agent;
    this.#noteBegin = noteBegin;
    this.#joined = new JoinedOutput(line, (_channel, bytes) => this.#tell(bytes));
    this.#silence = setTimeout(() => line.fail("no session was asked for in time", closeCodes.silent), firstMessageMs);
    this.#pings = setInterval(() => this.#send({ type: "ping" }), pingMs);
  }

  // ---- The client

  onText(text: string): void {
    const decoded = decodePtyMessage(text);
    if ("problem" in decoded) this.#refuse(decoded.problem);
    else this.#obey(decoded.message);
  }

  onBinary(): void {
    this.#refuse("a message must be a text frame");
  }

  onGone(): void {
    clearTimeout(this.#silence);
    clearInterval(this.#pings);
    this.#stream?.cancel();
  }

  #obey(message: PtyClientMessage): void {
    switch (message.type) {
      case "start":
        this.#join(message.cmd ?? ptyDefaults.cmd, () => this.#agent.pty(commandOf(message), sizeOf(message), this));
        return;
      case "connect":
        this.#join(message.tag, () => this.#agent.connect(message.tag, this));
        return;
      case "input":
        if (this.#isReady()) this.#type(message.data);
        return;
      case "resize":
        if (this.#isReady()) this.#stream?.resize(message.cols, message.rows);
        return;
      case "kill":
        if (this.#isReady()) this.#stream?.stop();
        return;
      default:
        message satisfies never;
    }
  }

  #join(subject: string, open: () => PtyStream): void {
    if (this.#stream !== undefined) {
      this.#refuse("this socket has its session already");
      return;
    }
    clearTimeout(this.#silence);
    this.#noteBegin(subject);
    const stream = open();
    this.#stream = stream;
    stream.onDrain(() => {
      this.#inputAheadBytes = 0;
      this.#line.resume();
    });
    if (!this.#line.isOpen) stream.cancel();
  }

  #isReady(): boolean {
    if (!this.#hasStarted) this.#refuse("the session has not started yet");
    return this.#hasStarted;
  }

  /** A program that does not read its input stops the client's sending in the end. */
  #type(data: string): void {
    const bytes = Buffer.from(data, "base64");
    if (bytes.length !== decodedBytes(data)) this.#refuse("the message input cannot be used: data must be base64");
    else if (this.#stream?.write(bytes) === false) this.#inputAheadBytes += bytes.length;
    if (this.#inputAheadBytes > inputAheadMaxBytes) this.#line.pause();
  }

  /** Once there is a session, a client's slip does not cost it. */
  #refuse(problem: string): void {
    if (this.#stream === undefined) this.#line.fail(problem, closeCodes.badMessage);
    else this.#send({ type: "error", data: problem, fatal: false });
  }

  // ---- The session

  started({ pid, tag }: Started): void {
    this.#hasStarted = true;
    this.#send({ type: "started", tag, pid });
  }

  output(_channel: string, chunk: Uint8Array): void {
    this.#joined.add("pty", chunk);
  }

  #tell(bytes: Buffer): void {
    const { length } = bytes;
    this.#send({ type: "output", data: bytes.toString("base64") }, () => this.#stream?.consumed(length));
  }

  exited({ exitCode }: Exit): void {
    this.#joined.flush();
    const close = () => this.#line.close(closeCodes.done, "the terminal's process ended");
    this.#send({ type: "exit", exit_code: exitCode }, close);
  }

  failed(error: Error): void {
    this.#line.failWith(error);
  }

  #send(message: PtyServerMessage, left?: () => void): void {
    this.#line.send(message, left);
  }
}

function commandOf({ cmd = ptyDefaults.cmd, args = [], envs, cwd, user }: PtyStart) {
  return { cmd, args, envs, cwd, user };
}

function sizeOf({ cols = ptyDefaults.cols, rows = ptyDefaults.rows }: PtyStart) {
  return { cols, rows };
}

/** How long the decoded text is if it is base64; the decoder skips what is none, and comes out shorter. */
function decodedBytes(base64: string): number {
  const padding = base64.endsWith("==") ? 2 : base64.endsWith("=") ? 1 : 0;
  return (base64.length / 4) * 3 - padding;
}
