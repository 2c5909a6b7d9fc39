/**
 * The guest's end of a connection that is passed on for a capsule with rules. It ends before a request to a rule's host, which would leave
 * unencrypted: what was sent before is answered, and the program connects again. Once the server has switched to another protocol, nothing
 * is looked at any more.
 */
import type { Connection } from "./connection.ts";
import type { PortStream, StreamSink } from "./port-stream.ts";
import { type FollowedEnd, RequestFollower } from "./request-follower.ts";
import { UpgradeAnswer } from "./upgrade-answer.ts";

/** Time for the answers to requests before the one that ends it. */
const lastAnswersMs = 60_000;

export class FollowedConnection implements StreamSink {
  readonly #stream: PortStream;
  readonly #connection: Connection;
  readonly #follower: RequestFollower;
  readonly #stopped: (why: FollowedEnd) => void;
  #isStopped = false;
  /** Undefined once it is known, or can be that of no upgrade. */
  #answer: UpgradeAnswer | undefined = new UpgradeAnswer();
  #timer: NodeJS.Timeout | undefined;

  /** Takes the place of `connection` as the stream's sink. */
  constructor(
    stream: PortStream,
    connection: Connection,
    { hosts, stopped }: { hosts: () => readonly string[]; stopped: (why: FollowedEnd) => void },
  ) {
    this.#stream = stream;
    this.#connection = connection;
    this.#stopped = stopped;
    this.#follower = new RequestFollower(hosts, (bytes) => connection.data(bytes));
    stream.sink = this;
    connection.heard = (bytes) => this.#hear(bytes);
  }

  data(bytes: Buffer): void {
    if (this.#isStopped) this.#stream.consumed(bytes.length);
    else this.#stopIf(this.#follower.take(bytes));
    this.#stream.holds(!this.#isStopped && this.#follower.heldBytes > 0);
  }

  ended(): void {
    if (this.#isStopped) return;
    this.#stopIf(this.#follower.end());
    if (!this.#isStopped) this.#connection.ended();
  }

  drained(): void {
    this.#connection.drained();
  }

  closed(hasEnded: boolean): void {
    clearTimeout(this.#timer);
    this.#connection.closed(hasEnded);
  }

  /** Bytes of the server, on their way. */
  #hear(bytes: Buffer): void {
    if (this.#answer === undefined) return;
    const switches = this.#follower.asksUpgrade ? this.#answer.take(bytes) : false;
    if (switches === undefined) return;
    this.#answer = undefined;
    if (switches) this.#follower.switched();
  }

  #stopIf(why: FollowedEnd | undefined): void {
    if (why === undefined) return;
    this.#isStopped = true;
    this.#stopped(why);
    this.#stream.consumed(this.#follower.heldBytes);
    this.#connection.ended();
    if (!this.#stream.isClosed) this.#timer = setTimeout(() => this.#stream.reset(), lastAnswersMs);
  }
}
