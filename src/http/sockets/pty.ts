/**
 * A terminal over a WebSocket. Its session belongs to the guest: it runs on when the client disconnects, and the client can
 * rejoin it by its tag.
 *
 *   (first message) ─ start ──► waiting ── started ──► attached ── exit ──► closed
 *                   └ connect ─►    └─ refused: error, fatal
 */
import type { Exit, OutputSink, PtyStream, Started } from "../../agent/agent.ts";
import { SocketQuery } from "../../wire/credentials.ts";
import { closeCodes } from "../../wire/errors.ts";
import {
  decodePtyMessage,
  PtyClientMessage,
  type PtyConnect,
  PtyServerMessage,
  type PtyStart,
  ptyDefaults,
} from "../../wire/pty-messages.ts";
import { CapsuleParams } from "../../wire/schema.ts";
import { recordStart } from "../audit-trail.ts";
import { commandOf } from "../command.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";
import { InputGate } from "./client-input.ts";
import type { Connection, ConnectionHandlers } from "./connection.ts";
import { firstMessageMs } from "./exec.ts";
import { JoinedOutput } from "./output-relay.ts";
import { socketMessages } from "./upgrades.ts";

const pingMs = 30_000;

export const ptySocketSection: Section = { chapter: "Execution", register };

function register(app: App, { services: { capsules, audit }, limits, sockets }: RouteContext): void {
  app.get(
    "/capsules/:id/pty",
    {
      config: { action: "pty", audit: { action: "pty" }, socket: true, refuses: ["quota_exceeded", "agent_error"] },
      exposeHeadRoute: false,
      schema: {
        operationId: "openTerminal",
        summary: "Open or rejoin a terminal (WebSocket)",
        params: CapsuleParams,
        querystring: SocketQuery,
        ...socketMessages(PtyClientMessage, PtyServerMessage),
      },
    },
    async (request, reply) => {
      const { identity, params } = request;
      sockets.check(request);
      await capsules.use(identity.teamId, params.id, "pty", (agent) => {
        const connection = sockets.accept(request, reply, params.id, { fatal: true });
        const open = (message: PtyStart | PtyConnect, sink: OutputSink) => {
          if (message.type === "connect") {
            const onExit = recordStart(audit, request, message.tag);
            return { stream: agent.connect(message.tag, sink, message.from === "start"), onExit };
          }
          const { cmd = ptyDefaults.cmd } = message;
          const command = commandOf({ ...message, cmd }, limits, { tag: message.tag });
          const onExit = recordStart(audit, request, cmd);
          return { stream: agent.pty(command, sizeOf(message), sink), onExit };
        };
        connection.handle(new PtyHandlers(connection, open));
        return connection.closed;
      });
    },
  );
}

/** Starts a session or rejoins one. Throws if the command cannot be used. */
type OpenSession = (message: PtyStart | PtyConnect, sink: OutputSink) => Session;

interface Session {
  stream: PtyStream;
  onExit: (exitCode: number) => void;
}

class PtyHandlers implements ConnectionHandlers, OutputSink {
  readonly #connection: Connection;
  readonly #open: OpenSession;
  readonly #startTimer: NodeJS.Timeout;
  readonly #pings: NodeJS.Timeout;
  #stream: PtyStream | undefined;
  #onExit: Session["onExit"] = () => {};
  readonly #joined: JoinedOutput<"pty">;
  #hasStarted = false;
  #input: InputGate | undefined;

  constructor(connection: Connection, open: OpenSession) {
    this.#connection = connection;
    this.#open = open;
    this.#joined = new JoinedOutput(connection, (_channel, bytes) => this.#sendOutput(bytes));
    this.#startTimer = setTimeout(
      () => connection.fail("no session was asked for in time", closeCodes.silent),
      firstMessageMs,
    );
    this.#pings = setInterval(() => this.#send({ type: "ping" }), pingMs);
  }

  // ---- Messages of the client

  onText(text: string): void {
    const decoded = decodePtyMessage(text);
    if ("problem" in decoded) this.#refuse(decoded.problem);
    else this.#handle(decoded.message);
  }

  onBinary(): void {
    this.#refuse("a message must be a text frame");
  }

  onClosed(): void {
    clearTimeout(this.#startTimer);
    clearInterval(this.#pings);
    this.#stream?.cancel();
  }

  #handle(message: PtyClientMessage): void {
    switch (message.type) {
      case "start":
      case "connect":
        this.#openSession(message);
        return;
      case "input":
        if (this.#isReady()) this.#writeInput(message.data);
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

  #openSession(message: PtyStart | PtyConnect): void {
    if (this.#stream !== undefined) {
      this.#refuse("this socket has its session already");
      return;
    }
    const { stream, onExit } = this.#open(message, this);
    clearTimeout(this.#startTimer);
    this.#stream = stream;
    this.#onExit = onExit;
    this.#input = new InputGate(this.#connection, stream);
    if (!this.#connection.isOpen) stream.cancel();
  }

  #isReady(): boolean {
    if (!this.#hasStarted) this.#refuse("the session has not started yet");
    return this.#hasStarted;
  }

  /** When the program does not read its input, the socket is not read either. */
  #writeInput(data: string): void {
    const bytes = Buffer.from(data, "base64");
    if (bytes.length !== decodedBytes(data)) this.#refuse("the message input cannot be used: data must be base64");
    else this.#input?.write(bytes);
  }

  /** A malformed message closes the socket only if there is no session yet. */
  #refuse(problem: string): void {
    if (this.#stream === undefined) this.#connection.fail(problem, closeCodes.badMessage);
    else this.#send({ type: "error", data: problem, fatal: false });
  }

  // ---- Events of the session

  started({ pid, tag }: Started): void {
    this.#hasStarted = true;
    this.#send({ type: "started", tag, pid });
  }

  output(_channel: string, chunk: Uint8Array): void {
    this.#joined.add("pty", chunk);
  }

  #sendOutput(bytes: Buffer): void {
    const { length } = bytes;
    this.#send({ type: "output", data: bytes.toString("base64") }, () => this.#stream?.consumed(length));
  }

  exited({ exitCode }: Exit): void {
    this.#onExit(exitCode);
    this.#joined.flush();
    const close = () => this.#connection.close(closeCodes.done, "the terminal's process ended");
    this.#send({ type: "exit", exit_code: exitCode }, close);
  }

  failed(error: Error): void {
    this.#connection.failWith(error);
  }

  #send(message: PtyServerMessage, onWritten?: () => void): void {
    this.#connection.send(message, onWritten);
  }
}

function sizeOf({ cols = ptyDefaults.cols, rows = ptyDefaults.rows }: PtyStart) {
  return { cols, rows };
}

/** The decoded length of valid base64. Node's decoder skips invalid characters, so its result would be shorter. */
function decodedBytes(base64: string): number {
  const padding = base64.endsWith("==") ? 2 : base64.endsWith("=") ? 1 : 0;
  return (base64.length / 4) * 3 - padding;
}
