/** Connections to ports that clients have open or ask for, of each capsule and each team. */
import { Counts } from "../../counts.ts";
import { CapsuleError } from "../../wire/errors.ts";
import type { Limits } from "../../wire/limits.ts";

export type PortLimits = Pick<Limits, "port_connections_max" | "port_team_connections_max">;

export class PortPlaces {
  readonly #limits: PortLimits;
  readonly #capsules = new Counts();
  readonly #teams = new Counts();

  constructor(limits: PortLimits) {
    this.#limits = limits;
  }

  /** Taken until the result is disposed; a second disposal does nothing. Throws CapsuleError("quota_exceeded"). */
  take(teamId: string, id: string): Disposable {
    const { port_connections_max: max, port_team_connections_max: teamMax } = this.#limits;
    if (this.#capsules.of(id) >= max)
      throw new CapsuleError("quota_exceeded", `capsule ${id} has ${max} connections to its ports, as many as it may`);
    if (this.#teams.of(teamId) >= teamMax)
      throw new CapsuleError("quota_exceeded", `the team has ${teamMax} connections to ports, as many as it may`);
    this.#capsules.add(id);
    this.#teams.add(teamId);
    let isTaken = true;
    return {
      [Symbol.dispose]: () => {
        if (!isTaken) return;
        isTaken = false;
        this.#capsules.subtract(id);
        this.#teams.subtract(teamId);
      },
    };
  }

  of(id: string): number {
    return this.#capsules.of(id);
  }
}
