/**
 * In one turn of the event loop, at most 8 answers of each team are encoded and written; further ones wait for the next turns, in order.
 * Requests enter their handlers one in a turn (team-turns.ts), but a thousand of them can wait in their handlers for one event, such as
 * the end of their capsule, or of a command that their commands wait for.
 */
import type { FastifyRequest } from "fastify";
import type { App } from "../route.ts";
import { MessageTurns, turnUnits } from "./message-turns.ts";
import { ownerOf } from "./team-turns.ts";

export const answersPerTurn = 8;
/** Output that is joined and looked through in the time of one unit. */
const bytesPerUnit = 64 * 1024;
/** Bytes of a large answer that are encoded and written in the time of one unit. */
export const sentBytesPerUnit = 16 * 1024;
/** Most pieces of a command's output; the piece before one can be a few characters. */
const usualPieceBytes = 24 * 1024;

/** The turns in which the answer to a request is sent. */
const sending = new WeakMap<FastifyRequest, MessageTurns>();

export class AnswerTurns {
  readonly #turns = new MessageTurns();
  readonly #entered = new WeakSet<FastifyRequest>();

  /** Call before hooks are added that cost something for each answer. */
  attachTo(app: App): void {
    app.addHook("onSend", (request, _reply, _payload, done) => {
      sending.set(request, this.#turns);
      if (this.#entered.has(request)) done();
      else this.#enter(request, 0, () => done());
    });
  }

  /** Call where the work on an answer begins that costs as much as sending it, or more; `bytes`: of the output in it. */
  enter(request: FastifyRequest, bytes: number): Promise<void> {
    this.#entered.add(request);
    return new Promise((resolve) => this.#enter(request, bytes, resolve));
  }

  /** Calls `next` also when the client is gone: the end of the request is in the hooks behind this one. */
  #enter(request: FastifyRequest, bytes: number, next: () => void): void {
    this.#turns.enter(ownerOf(request).name, turnUnits / answersPerTurn + bytes / bytesPerUnit, undefined, next);
  }
}

/** Call behind each piece, of so many bytes, of a large answer: resolves when the next one may be made. */
export function enterPieceTurn(request: FastifyRequest, bytes: number): Promise<void> {
  const units = 1 + Math.max(bytes, usualPieceBytes) / sentBytesPerUnit;
  return new Promise((resolve) => {
    const turns = sending.get(request) as MessageTurns;
    turns.enter(ownerOf(request).name, units, undefined, resolve);
  });
}
