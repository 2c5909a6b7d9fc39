/** Exec stream: one command, its output while it runs. The command lives no longer than the socket. */
import type { Agent, Command } from "../../agent/agent.ts";
import { closeCodes } from "../../wire/close-codes.ts";
import { decodeExecMessage, ExecClientMessage, ExecServerMessage, type ExecStart } from "../../wire/exec-messages.ts";
import { CapsuleParams } from "../../wire/schema.ts";
import { OutputSocketQuery } from "../../wire/ticket.ts";
import { recordBegun } from "../audit-trail.ts";
import type { App, RouteContext } from "../route.ts";
import type { Connection, ConnectionHandlers } from "./connection.ts";
import { OutputRelay } from "./output-relay.ts";
import { socketMessages } from "./socket-messages.ts";
import type { Sockets } from "./upgrades.ts";

/** A client that connects and says nothing is sent away. */
export const firstMessageMs = 30_000;

export function execSocketRoutes(app: App, { services: { capsules, audit } }: RouteContext, sockets: Sockets): void {
  app.get(
    "/capsules/:id/exec/stream",
    {
      config: { action: "exec", audit: "exec", socket: true, refuses: ["quota_exceeded", "agent_error"] },
      exposeHeadRoute: false,
      schema: {
        summary: "Run a command and stream its output (WebSocket)",
        params: CapsuleParams,
        querystring: OutputSocketQuery,
        ...socketMessages(ExecClientMessage, ExecServerMessage),
      },
    },
    async (request, reply) => {
      const { identity, params, query } = request;
      sockets.check(request);
      const agent = await capsules.enter(identity.teamId, params.id, "exec");
      const line = sockets.accept(request, reply, params.id, {});
      const relay = new OutputRelay(line, query.encoding ?? "utf-8");
      const noteBegin = (cmd: string) => {
        recordBegun(audit, request, cmd);
        return capsules.beginExec(params.id);
      };
      line.handle(new ExecConversation(line, relay, agent, noteBegin));
    },
  );
}

class ExecConversation implements ConnectionHandlers {
  readonly #line: Connection;
  readonly #relay: OutputRelay;
  readonly #agent: Agent;
  readonly #noteBegin: (cmd: string) => () => void;
  readonly #silence: NodeJS.Timeout;
  #noteEnd: (() => void) | undefined;

  constructor(line: Connection, relay: OutputRelay, agent: Agent, noteBegin: (cmd: string) => () => void) {
    this.#line = line;
    this.#relay = relay;
    this.#agent = agent;
    this.#noteBegin = noteBegin;
    this.#silence = setTimeout(() => line.fail("no command was given in time", closeCodes.silent), firstMessageMs);
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
        else this.#start(message);
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

  onGone(): void {
    clearTimeout(this.#silence);
    this.#relay.drop();
    this.#noteEnd?.();
  }

  get #hasStarted(): boolean {
    return this.#noteEnd !== undefined;
  }

  #start({ cmd, args = [], envs, cwd }: ExecStart): void {
    clearTimeout(this.#silence);
    this.#noteEnd = this.#noteBegin(cmd);
    const command: Command = { cmd, args, envs, cwd };
    this.#relay.follow(this.#agent.run(command, this.#relay));
  }

  /** A running command survives a client's slip; before it there is nothing to lose. */
  #refuse(problem: string): void {
    if (this.#hasStarted) this.#line.send({ type: "error", data: problem } as ExecServerMessage);
    else this.#line.fail(problem, closeCodes.badMessage);
  }
}
