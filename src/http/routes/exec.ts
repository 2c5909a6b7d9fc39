/** Runs one command: in the foreground, answered with its result, or in the background, answered at its start. */
import type { FastifyReply } from "fastify";
import type { Command } from "../../agent/agent.ts";
import type { AgentParts } from "../../capsules/agent-parts.ts";
import { CapsuleError, type ErrorCode, statusOf } from "../../wire/errors.ts";
import { BackgroundResult, ExecBody, ForegroundResult } from "../../wire/exec.ts";
import { CapsuleParams } from "../../wire/schema.ts";
import { addAuditDetails } from "../audit-trail.ts";
import { bytesOfBase64 } from "../base64.ts";
import { guestReplyMs, onClientGone, onClosed, requestSignal } from "../client-gone.ts";
import { commandOf } from "../command.ts";
import { type ForegroundOutcome, outputError, runForeground } from "../foreground.ts";
import { sendPieces } from "../large-answer.ts";
import { type EncodedOutput, Output } from "../output.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";

type ExecAgent = AgentParts["exec"];

const refuses: ErrorCode[] = ["conflict", "quota_exceeded", "agent_error", "timeout", "no_capacity"];

export const execSection: Section = { chapter: "Execution", register };

function register(app: App, { services: { capsules }, limits, answers, answerTurns }: RouteContext): void {
  app.post(
    "/capsules/:id/exec",
    {
      config: { action: "exec", audit: { action: "exec" }, refuses },
      schema: {
        operationId: "execCommand",
        summary: "Run a command",
        example: { cmd: "python3", args: ["-c", "print(6 * 7)"], timeout_sec: 10 },
        params: CapsuleParams,
        body: ExecBody(limits),
        response: { 200: ForegroundResult, 202: BackgroundResult },
      },
      preValidation: (request, _reply, done) => {
        ignoreFields(request.body);
        done();
      },
    },
    async (request, reply) => {
      const { identity, params, body } = request;
      addAuditDetails(request, { subject: body.cmd });
      const send = await capsules.use(identity.teamId, params.id, "exec", (agent) => {
        if (body.background) {
          const stdin = isInputOpen(body) || undefined;
          return startInBackground(agent, commandOf(body, limits, { tag: body.tag, stdin }), reply);
        }
        const input = inputOf(body);
        const command = commandOf(body, limits, { stdin: input && true });
        return runInForeground(agent, command, reply, {
          onExit: (exitCode) => addAuditDetails(request, { exitCode }),
          input,
          timeoutSec: body.timeout ?? body.timeout_sec ?? limits.exec_timeout_default_sec,
          output: new Output(limits.exec_output_max_bytes, answers.open(identity.teamId)),
          enterTurn: (bytes) => answerTurns.enter(request, bytes),
        });
      });
      return send();
    },
  );
}

/** Takes out the fields that are ignored here, so that a malformed one is not refused. The body is not checked yet; it may be missing. */
function ignoreFields(body: Partial<ExecBody> | undefined): void {
  if (body === undefined) return;
  if (body.background === true) delete body.stdin_base64;
  else delete body.tag;
}

/** Throws invalid_request. */
function inputOf({ stdin, stdin_base64: base64 }: ExecBody): Buffer | undefined {
  if (typeof stdin === "boolean") throw badField("stdin", "stdin of a foreground command is a string");
  if (base64 === undefined) return stdin === undefined ? undefined : Buffer.from(stdin);
  if (stdin !== undefined) throw badField("stdin_base64", "stdin and stdin_base64 exclude each other");
  const bytes = bytesOfBase64(base64);
  if (bytes === undefined) throw badField("stdin_base64", "stdin_base64 must be base64");
  return bytes;
}

/** Throws invalid_request. */
function isInputOpen({ stdin = false }: ExecBody): boolean {
  if (typeof stdin === "string") throw badField("stdin", "stdin of a background command is true or false");
  return stdin;
}

function badField(field: string, message: string): CapsuleError {
  return new CapsuleError("invalid_request", message, { details: { field } });
}

/** Sends the answer, after `use`: a promise of a reply resolves only when its client has read it. */
type Send = () => FastifyReply;

async function startInBackground(agent: ExecAgent, command: Command, reply: FastifyReply): Promise<Send> {
  const started = await agent.start(command, requestSignal(reply, guestReplyMs));
  return () => reply.code(202).send(started);
}

async function runInForeground(
  agent: ExecAgent,
  command: Command,
  reply: FastifyReply,
  options: {
    timeoutSec: number;
    input: Buffer | undefined;
    output: Output;
    onExit: (exitCode: number) => void;
    enterTurn: (bytes: number) => Promise<void>;
  },
): Promise<Send> {
  const { timeoutSec, output, onExit, enterTurn } = options;
  onClosed(reply, () => output.release());
  const outcome = await runForeground(agent, command, {
    ...options,
    onAbandoned: (cancel) => onClientGone(reply, cancel),
  });
  onExit(outcome.exitCode);
  await enterTurn(output.bytes); // many commands can end at once
  const encoded = encodeOutput(output, outcome.hasTimedOut);
  return () =>
    outcome.hasTimedOut ? sendTimeout(reply, encoded, outcome, timeoutSec) : sendResult(reply, encoded, outcome);
}

function encodeOutput(output: Output, isPartial: boolean): EncodedOutput {
  try {
    return output.encode(isPartial);
  } catch (error) {
    throw outputError(error);
  }
}

function sendResult(reply: FastifyReply, output: EncodedOutput, { exitCode, durationMs }: ForegroundOutcome) {
  const { encoding, truncated } = output;
  const rest = { exit_code: exitCode, duration_ms: durationMs, encoding, ...(truncated ? { truncated } : {}) };
  return sendPieces(reply, ...joined("{", output, `,${JSON.stringify(rest).slice(1)}`));
}

/** The body of every error, with the output so far as its details. */
function sendTimeout(
  reply: FastifyReply,
  output: EncodedOutput,
  { durationMs }: ForegroundOutcome,
  timeoutSec: number,
) {
  const { encoding, truncated } = output;
  const message = `the command did not end within ${timeoutSec} s and was killed`;
  const head = `{"error":{"code":"timeout","message":${JSON.stringify(message)},"details":{`;
  const rest = { encoding, ...(truncated ? { truncated } : {}), duration_ms: durationMs };
  return sendPieces(reply.code(statusOf.timeout), ...joined(head, output, `,${JSON.stringify(rest).slice(1)}}}`));
}

/** Length and pieces of an object's text that begins with the fields stdout and stderr. */
function joined(
  head: string,
  { stdout, stderr }: EncodedOutput,
  rest: string,
): [bytes: number, pieces: Iterable<Buffer>] {
  const texts = [`${head}"stdout":"`, '","stderr":"', `"${rest}`].map((text) => Buffer.from(text));
  const [before, between, after] = texts as [Buffer, Buffer, Buffer];
  const bytes = texts.reduce((sum, text) => sum + text.length, 0) + stdout.sentBytes + stderr.sentBytes;
  function* pieces() {
    yield before;
    yield* stdout.pieces();
    yield between;
    yield* stderr.pieces();
    yield after;
  }
  return [bytes, pieces()];
}
