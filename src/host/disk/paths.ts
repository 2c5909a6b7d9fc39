/**
 * Where things are in the data folder. Every path of the host room is made here, from names that were checked.
 *
 *   images/<name>/<hash>/            kernel, initrd, root disk
 *   bases/<key>/                     checkpoint of a booted image, one per shape and machine
 *   templates/<storage>/             checkpoint of a captured capsule
 *   capsules/<id>/                   capsule.json, vm.json, disk.qcow2, sockets; checkpoint/ while paused
 *   work/<name>/                     half-made folders, and those of blanks; swept at start
 *
 * Bases, templates, capsules and half-made folders all stand two levels below the data folder: a disk layer names its
 * backing file relatively (`../../bases/…`), so the name stays true when a folder is published or the data folder moves.
 */
import { join } from "node:path";

const namePattern = /^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$/;

export class Paths {
  readonly data: string;
  readonly capsules: string;
  readonly templates: string;
  readonly bases: string;
  readonly work: string;

  constructor(data: string) {
    this.data = data;
    this.capsules = join(data, "capsules");
    this.templates = join(data, "templates");
    this.bases = join(data, "bases");
    this.work = join(data, "work");
  }

  capsule(id: string): string {
    return join(this.capsules, checked(id));
  }

  template(storage: string): string {
    return join(this.templates, checked(storage));
  }

  base(key: string): string {
    return join(this.bases, checked(key));
  }

  scratch(name: string): string {
    return join(this.work, checked(name));
  }
}

function checked(name: string): string {
  if (!namePattern.test(name)) throw new Error(`not a folder name: ${JSON.stringify(name)}`);
  return name;
}
