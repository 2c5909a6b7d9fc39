/** The parts of the agent that clients' actions use. A command cannot be started through another part than `exec`, which counts it. */
import type { Agent, Command, FileVerbs } from "../agent/agent.ts";
import type { NetworkVerbs } from "../agent/network-verbs.ts";
import type { Variables } from "./envs.ts";

export interface AgentParts {
  exec: Pick<Agent, "run" | "start">;
  processes: Pick<Agent, "processes" | "signal" | "exit" | "attach" | "attachFrom" | "logs" | "input">;
  pty: Pick<Agent, "pty" | "connect">;
  files: Pick<Agent, keyof FileVerbs>;
  ports: Pick<NetworkVerbs, "dial" | "ports"> & {
    /** Counts a request under way as activity, and holds the idle timer off, until `use` or the returned function ends it. */
    beginRequest(): () => void;
  };
  portList: Pick<NetworkVerbs, "ports">;
}

export interface PartsOptions {
  /** Called when a command was sent to the guest; the function that it returns, when `use` is disposed. */
  begin: () => () => void;
  /** As `begin`, of a request to a port. */
  beginRequest: () => () => void;
  use: DisposableStack;
  /** Variables of every command and terminal; a command's own go before them. */
  envs: () => Variables;
}

export function partsOf(agent: Agent, { begin, beginRequest, use, envs }: PartsOptions): AgentParts {
  const withEnvs = (command: Command): Command => {
    const variables = envs();
    return Object.keys(variables).length === 0 ? command : { ...command, envs: { ...variables, ...command.envs } };
  };
  return {
    exec: {
      run(command, sink) {
        const stream = agent.run(withEnvs(command), sink);
        use.defer(begin());
        return stream;
      },
      start(command, signal) {
        const started = agent.start(withEnvs(command), signal);
        use.defer(begin());
        return started;
      },
    },
    processes: agent,
    pty: {
      pty: (command, ...rest) => agent.pty(withEnvs(command), ...rest),
      connect: (...session) => agent.connect(...session),
    },
    files: agent,
    ports: {
      dial: (...to) => agent.dial(...to),
      ports: (...of) => agent.ports(...of),
      beginRequest() {
        const end = beginRequest();
        use.defer(end);
        return end;
      },
    },
    portList: agent,
  };
}
