/**
 * Places for what takes much memory while it lasts. Each team has a few of its own, and who finds none waits in the team's
 * line: nobody is refused, and no team makes another one wait.
 */
interface Team {
  taken: number;
  /** In the order of their coming. Nobody waits while there is a place. */
  readonly waiting: Set<() => void>;
}

export class TeamSemaphore {
  readonly #ofEach: number;
  readonly #teams = new Map<string, Team>();

  constructor(ofEach: number) {
    this.#ofEach = ofEach;
  }

  /** Resolves when there is a place, with the way to leave it. Rejects with the signal's reason if it aborts before. */
  acquire(teamId: string, signal: AbortSignal): Promise<() => void> {
    return new Promise((resolve, reject) => {
      signal.throwIfAborted();
      const team = this.#teams.get(teamId) ?? { taken: 0, waiting: new Set() };
      this.#teams.set(teamId, team);
      const enter = () => {
        signal.removeEventListener("abort", giveUp);
        team.taken += 1;
        resolve(this.#exit(teamId, team));
      };
      const giveUp = () => {
        team.waiting.delete(enter);
        reject(signal.reason);
      };
      if (team.taken < this.#ofEach) {
        enter();
        return;
      }
      team.waiting.add(enter);
      signal.addEventListener("abort", giveUp);
    });
  }

  /** Teams that have taken any. */
  get size(): number {
    return this.#teams.size;
  }

  #exit(teamId: string, team: Team): () => void {
    let isIn = true;
    return () => {
      if (!isIn) return;
      isIn = false;
      team.taken -= 1;
      const [next] = team.waiting;
      if (next !== undefined) {
        team.waiting.delete(next);
        next();
      } else if (team.taken === 0) this.#teams.delete(teamId);
    };
  }
}
