/** The parts of the agent that clients' actions use. A command cannot be started through another part than `exec`, which counts it. */
import type { Agent, FileVerbs } from "../agent/agent.ts";

export interface AgentParts {
  exec: Pick<Agent, "run" | "start">;
  processes: Pick<Agent, "processes" | "signal" | "exit" | "attach" | "attachFrom" | "logs" | "input">;
  pty: Pick<Agent, "pty" | "connect">;
  files: Pick<Agent, keyof FileVerbs>;
}

/** `begin` is called when a command was sent to the guest; the function that it returns, when `use` is disposed. */
export function partsOf(agent: Agent, begin: () => () => void, use: DisposableStack): AgentParts {
  return {
    exec: {
      run(command, sink) {
        const stream = agent.run(command, sink);
        use.defer(begin());
        return stream;
      },
      start(command, signal) {
        const started = agent.start(command, signal);
        use.defer(begin());
        return started;
      },
    },
    processes: agent,
    pty: agent,
    files: agent,
  };
}
