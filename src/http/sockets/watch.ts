/** Tells the changes below a directory of a capsule. */
import type { ChangeSink, ChangeStream } from "../../agent/agent.ts";
import { AgentFailure } from "../../agent/failure.ts";
import { Counts } from "../../counts.ts";
import { CapsuleError, closeCodes } from "../../wire/errors.ts";
import { WatchQuery, WatchServerMessage } from "../../wire/file-watch.ts";
import { CapsuleParams } from "../../wire/schema.ts";
import { addAuditDetails, recordStart } from "../audit-trail.ts";
import { guestReplyMs, requestSignal } from "../client-gone.ts";
import { checkPath } from "../guest-path.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";
import type { Connection, ConnectionHandlers } from "./connection.ts";
import { socketMessages } from "./upgrades.ts";
import { messagesAtOnce, WatchTurns } from "./watch-turns.ts";

export const watchSocketSection: Section = { chapter: "Files", register };

function register(app: App, { services: { capsules, audit }, limits, sockets }: RouteContext): void {
  const watches = new Counts();
  const turns = new WatchTurns();
  const enter = (id: string) => {
    if (watches.of(id) >= limits.watches_max) {
      const message = `capsule ${id} has ${watches.of(id)} watches open, as many as it may`;
      throw new CapsuleError("quota_exceeded", message);
    }
    watches.add(id);
  };
  app.get(
    "/capsules/:id/files/watch",
    {
      config: {
        action: "files",
        audit: { action: "file.watch" },
        socket: true,
        refuses: ["quota_exceeded", "agent_error", "conflict"],
      },
      exposeHeadRoute: false,
      schema: {
        operationId: "watchFiles",
        summary: "Watch a directory (WebSocket)",
        description:
          "An atomic write of this API is one event of its own name. A slow client loses events, and is told so by `overflow`; " +
          "so does one whose directories become more than `watch_directories_max`. When the directory is removed or moved away, " +
          "the last event is its `remove`, and the socket closes with 1000. A watch is no activity.",
        params: CapsuleParams,
        querystring: WatchQuery,
        ...socketMessages(undefined, WatchServerMessage),
      },
    },
    async (request, reply) => {
      const { identity, params, query } = request;
      addAuditDetails(request, { subject: query.path });
      await capsules.use(identity.teamId, params.id, "files", async (agent) => {
        const path = checkPath(query.path, limits.path_max_bytes);
        enter(params.id);
        try {
          const asked = { path, recursive: query.recursive === "true", directoriesMax: limits.watch_directories_max };
          await watched(
            (sink) => agent.watch(asked, sink),
            () => {
              // Only now, so that a request without an upgrade, which a client repeats to learn why it was refused, learns that.
              sockets.check(request);
              const connection = sockets.accept(request, reply, params.id, {});
              recordStart(audit, request, query.path);
              return connection;
            },
            (cancel) =>
              requestSignal(reply, guestReplyMs).addEventListener("abort", (event) =>
                cancel((event.target as AbortSignal).reason),
              ),
            (send) => turns.enter(identity.teamId, send),
          );
        } finally {
          watches.subtract(params.id);
        }
      });
    },
  );
}

/** Accepts the socket when the directory is watched. Resolves when the socket has closed. */
function watched(
  watch: (sink: ChangeSink) => ChangeStream,
  accept: () => Connection,
  onAbandoned: (cancel: (reason: Error) => void) => void,
  inTurn: (send: () => number) => void,
): Promise<void> {
  return new Promise((resolve, reject) => {
    let relay: ChangeRelay | undefined;
    const stream = watch({
      watching() {
        try {
          const connection = accept();
          relay = new ChangeRelay(connection, stream, inTurn);
          connection.handle(relay);
          relay.begin();
          resolve(connection.closed);
        } catch (error) {
          stream.cancel();
          reject(error);
        }
      },
      available: () => relay?.pump(),
      failed: (error) => (relay === undefined ? reject(error) : relay.failed(error)),
    });
    onAbandoned((reason) => {
      if (relay !== undefined) return;
      stream.cancel();
      reject(reason);
    });
  });
}

/** Takes a change from the guest when the client has been sent the one before, so that little waits here. */
class ChangeRelay implements ConnectionHandlers {
  readonly #connection: Connection;
  readonly #stream: ChangeStream;
  readonly #inTurn: (send: () => number) => void;
  /** `pump` will be called. */
  #isPending = false;

  constructor(connection: Connection, stream: ChangeStream, inTurn: (send: () => number) => void) {
    this.#connection = connection;
    this.#stream = stream;
    this.#inTurn = inTurn;
  }

  begin(): void {
    this.#send({ type: "ready" });
    this.pump();
  }

  pump(): void {
    if (!this.#connection.isOpen || this.#isPending) return;
    this.#isPending = true;
    this.#inTurn(() => {
      this.#isPending = false;
      return this.#sendSome();
    });
  }

  /** How many were sent. `pump` follows where there may be more. */
  #sendSome(): number {
    let sent = 0;
    while (this.#connection.isOpen && sent < messagesAtOnce) {
      if (this.#connection.isBehind) {
        this.#isPending = true;
        this.#connection.onceDrained(() => {
          this.#isPending = false;
          this.pump();
        });
        return sent;
      }
      if (!this.#sendNext()) return sent;
      sent++;
    }
    this.pump();
    return sent;
  }

  failed(error: Error): void {
    // 1000 is the directory's own end.
    if (error instanceof AgentFailure) this.#connection.fail(error.message, closeCodes.broken);
    else this.#connection.failWith(error);
  }

  onText(): void {
    this.#send({ type: "error", data: "a watch takes no messages" });
  }

  onBinary(): void {
    this.onText();
  }

  onClosed(): void {
    this.#stream.cancel();
  }

  /** False: there is none. */
  #sendNext(): boolean {
    const change = this.#stream.take();
    if (change === undefined) return false;
    if (change === "end") this.#connection.close(closeCodes.done, "the directory is gone");
    else if (change === "overflow") this.#send({ type: "overflow" });
    else this.#send({ type: "event", ...change });
    return change !== "end";
  }

  #send(message: WatchServerMessage): void {
    this.#connection.send(message);
  }
}
