/**
 * The body of an upload, chunk by chunk. A chunk waits while its team's uploads have had their share of a turn of the event loop, and
 * its client is read no further meanwhile.
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import type { FastifyReply, FastifyRequest } from "fastify";
import { CapsuleError } from "../wire/errors.ts";
import type { ChunkTurns } from "./access/chunk-turns.ts";

/** Time without a byte from the client after which the upload fails. */
export const uploadStallMs = 120_000;

export class UploadBody {
  readonly request: IncomingMessage;
  readonly #response: ServerResponse;
  readonly #teamId: string;
  readonly #turns: ChunkTurns;

  constructor({ raw, identity }: FastifyRequest, reply: FastifyReply, turns: ChunkTurns) {
    this.request = raw;
    this.#response = reply.raw;
    this.#teamId = identity.teamId;
    this.#turns = turns;
  }

  /** Fails when the client stalls. Returning early does not destroy the request, whose response is still to be sent. */
  async *chunks(): AsyncGenerator<Buffer, void> {
    const chunks: AsyncIterator<Buffer> = this.request.iterator({ destroyOnReturn: false });
    try {
      for (;;) {
        const next = await withinStallTime(chunks.next());
        if (next.done) return;
        const turn = this.#turns.enter(this.#teamId, next.value.length, this.#response);
        if (turn !== undefined) await turn;
        yield next.value;
      }
    } finally {
      void chunks.return?.(); // not awaited: it settles after the next chunk, which may never arrive
    }
  }
}

/** Does not destroy the request on a stall, so that the client can read the response. */
async function withinStallTime<T>(chunk: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const stall = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(stalled()), uploadStallMs);
  });
  return Promise.race([chunk, stall]).finally(() => clearTimeout(timer));
}

function stalled(): CapsuleError {
  return new CapsuleError("request_timeout", "the file stopped arriving");
}
