/**
 * When answers leave that cost next to nothing to make. Each that leaves by itself wakes its client, which takes the
 * server as long as it takes to make one or two. So when many are asked for at once, in one turn of the event loop, the
 * first leave by themselves, as those of a few clients always do, and the others four at a time: the client is still
 * busy with one when the next arrives. None waits longer than the turn.
 */
import type { FastifyReply } from "fastify";

const alone = 4;
const together = 4;

export class Departures {
  /** How many answers this turn has had. */
  #ofTurn = 0;
  #waiting: { reply: FastifyReply; text: string }[] = [];

  send(reply: FastifyReply, text: string): void {
    if (this.#ofTurn === 0) setImmediate(() => this.#endTurn());
    this.#ofTurn += 1;
    if (this.#ofTurn <= alone) {
      reply.send(text);
      return;
    }
    this.#waiting.push({ reply, text });
    if (this.#waiting.length === together) this.#leave();
  }

  #endTurn(): void {
    this.#ofTurn = 0;
    this.#leave();
  }

  #leave(): void {
    const leaving = this.#waiting;
    this.#waiting = [];
    for (const { reply, text } of leaving) reply.send(text);
  }
}
