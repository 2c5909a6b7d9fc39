/** Runs one command over a WebSocket and streams its output. Closing the socket kills the command, unless it survives. */
import type { CommandStream } from "../../agent/agent.ts";
import { OutputSocketQuery } from "../../wire/credentials.ts";
import { closeCodes } from "../../wire/errors.ts";
import { decodeExecMessage, ExecClientMessage, ExecServerMessage, type ExecStart } from "../../wire/exec.ts";
import { CapsuleParams } from "../../wire/schema.ts";
import { recordStart } from "../audit-trail.ts";
import { commandOf } from "../command.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";
import { ClientStdin, stdinOf } from "./client-input.ts";
import type { Connection, ConnectionHandlers } from "./connection.ts";
import { OutputRelay } from "./output-relay.ts";
import { socketMessages } from "./upgrades.ts";

/** Time for the client to send its first message. */
export const firstMessageMs = 30_000;

export const execSocketSection: Section = { chapter: "Execution", register };

function register(app: App, { services: { capsules, audit }, limits, sockets }: RouteContext): void {
  app.get(
    "/capsules/:id/exec/stream",
    {
      config: { action: "exec", audit: { action: "exec" }, socket: true, refuses: ["quota_exceeded", "agent_error"] },
      exposeHeadRoute: false,
      schema: {
        operationId: "streamCommand",
        summary: "Run a command and stream its output (WebSocket)",
        params: CapsuleParams,
        querystring: OutputSocketQuery,
        ...socketMessages(ExecClientMessage, ExecServerMessage),
      },
    },
    async (request, reply) => {
      const { identity, params, query } = request;
      sockets.check(request);
      await capsules.use(identity.teamId, params.id, "exec", (agent) => {
        const connection = sockets.accept(request, reply, params.id, {});
        const relay = new OutputRelay(connection, query);
        const start = (message: ExecStart) => {
          const { cmd, tag, stdin, survive } = message;
          const own = { tag, stdin: stdin || undefined, survive: survive || undefined };
          const command = commandOf(message, limits, own);
          if (survive) relay.tellTag();
          relay.onExit(recordStart(audit, request, cmd));
          return agent.run(command, relay);
        };
        connection.handle(new ExecHandlers(connection, relay, start));
        return connection.closed;
      });
    },
  );
}

class ExecHandlers implements ConnectionHandlers {
  readonly #connection: Connection;
  readonly #relay: OutputRelay;
  readonly #start: (message: ExecStart) => CommandStream;
  readonly #startTimer: NodeJS.Timeout;
  #hasStarted = false;
  /** Only of a command that was started with it. */
  #stdin: ClientStdin | undefined;

  /** `start` throws if the command cannot be used. */
  constructor(connection: Connection, relay: OutputRelay, start: (message: ExecStart) => CommandStream) {
    this.#connection = connection;
    this.#relay = relay;
    this.#start = start;
    this.#startTimer = setTimeout(
      () => connection.fail("no command was given in time", closeCodes.silent),
      firstMessageMs,
    );
  }

  onText(text: string): void {
    const decoded = decodeExecMessage(text);
    if ("problem" in decoded) {
      this.#refuse(decoded.problem);
      return;
    }
    const { message } = decoded;
    switch (message.type) {
      case "start":
        if (this.#hasStarted) this.#refuse("the command was started already");
        else this.#follow(this.#start(message), message.stdin === true);
        return;
      case "stdin":
      case "stdin_end":
        if (this.#stdin !== undefined) this.#stdin.take(message);
        else this.#refuse(`the message ${message.type} cannot be used: no command was started with "stdin": true`);
        return;
      case "stop":
        if (this.#hasStarted) this.#relay.stop();
        else this.#refuse("there is nothing to stop yet");
        return;
      default:
        message satisfies never;
    }
  }

  onBinary(): void {
    this.#refuse("a message must be a text frame");
  }

  onClosed(): void {
    clearTimeout(this.#startTimer);
    this.#relay.drop();
  }

  #follow(stream: CommandStream, hasStdin: boolean): void {
    clearTimeout(this.#startTimer);
    this.#hasStarted = true;
    if (hasStdin) {
      const target = stdinOf(this.#connection, stream);
      this.#stdin = new ClientStdin(target, (problem) => this.#refuse(problem));
    }
    this.#relay.follow(stream);
  }

  /** A malformed message closes the socket only if no command is running. */
  #refuse(problem: string): void {
    if (this.#hasStarted) this.#connection.send({ type: "error", data: problem } as ExecServerMessage);
    else this.#connection.fail(problem, closeCodes.badMessage);
  }
}
