/** Runs one command: in the foreground, answered with its result, or in the background, answered at its start. */
import type { FastifyReply } from "fastify";
import type { Command } from "../../agent/agent.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { BackgroundResult, ExecBody, ForegroundResult } from "../../wire/exec.ts";
import { CapsuleParams } from "../../wire/schema.ts";
import { addAuditDetails } from "../audit-trail.ts";
import { guestReplyMs, onClientGone, onClosed, requestSignal } from "../client-gone.ts";
import { Output, OutputBudgets } from "../output.ts";
import type { App, RouteContext } from "../route.ts";
import { runForeground } from "./foreground.ts";

/**
 * Memory for the output of foreground commands until their clients have read it, in streams of maximal length. Beyond it
 * output is truncated.
 */
const bufferedStreams = { team: 16, all: 32 };

export function execRoutes(app: App, { services: { capsules }, limits }: RouteContext): void {
  const outputMaxBytes = limits.exec_output_max_bytes;
  const budgets = new OutputBudgets({
    teamBytes: bufferedStreams.team * outputMaxBytes,
    allBytes: bufferedStreams.all * outputMaxBytes,
  });
  app.post(
    "/capsules/:id/exec",
    {
      config: { action: "exec", audit: "exec", refuses: ["conflict", "quota_exceeded", "agent_error", "timeout"] },
      schema: {
        summary: "Run a command",
        params: CapsuleParams,
        body: ExecBody(limits),
        response: { 200: ForegroundResult, 202: BackgroundResult },
      },
    },
    async (request, reply) => {
      const { identity, params, body } = request;
      addAuditDetails(request, { subject: body.cmd });
      const agent = await capsules.enter(identity.teamId, params.id, "exec");
      const command = commandOf(body, limits.path_max_bytes);
      const running = body.background
        ? agent.start(command, requestSignal(reply, guestReplyMs))
        : runForeground(agent, command, {
            timeoutSec: body.timeout ?? body.timeout_sec ?? limits.exec_timeout_default_sec,
            output: releasedOnClose(reply, new Output(outputMaxBytes, budgets.of(identity.teamId))),
            onAbandoned: (cancel) => onClientGone(reply, cancel),
          });
      const ended = capsules.beginExec(params.id); // after the command was sent, to run beside the guest
      try {
        const result = await running;
        if (body.background) reply.code(202);
        return result;
      } finally {
        ended();
      }
    },
  );
}

function releasedOnClose(reply: FastifyReply, output: Output): Output {
  onClosed(reply, () => output.release());
  return output;
}

function commandOf({ cmd, args = [], envs, cwd, background, tag }: ExecBody, pathMaxBytes: number): Command {
  if (cwd !== undefined && Buffer.byteLength(cwd) > pathMaxBytes) {
    throw new CapsuleError("invalid_request", `cwd is longer than ${pathMaxBytes} bytes`, {
      details: { field: "cwd" },
    });
  }
  return { cmd, args, envs, cwd, tag: background ? tag : undefined };
}
