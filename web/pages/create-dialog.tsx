/** A new capsule: from which template, how large, and when it pauses by itself. */
import { useState } from "preact/hooks";
import { FormDialog } from "../parts/dialog.tsx";
import { Field } from "../parts/field.tsx";
import { useReading } from "../parts/reading.ts";
import { useDashboard } from "../state/dashboard.ts";
import { goTo } from "../state/route.ts";
import { cpus, duration, memory } from "../state/words.ts";

/** What a capsule gets that asks for nothing. */
const usual = { template: "minimal", vcpus: 1, memoryMb: 512, timeoutSec: 0 };

type Wanted = typeof usual;
const pauses = [0, 300, 900, 3_600, 14_400, 86_400];

export function CreateDialog({ template, onClose }: { template?: string; onClose: () => void }) {
  const { service, fleet, templates } = useDashboard();
  const limits = useReading(() => service.limits(), []).value;
  const [wanted, setWanted] = useState<Wanted>({ ...usual, template: template ?? usual.template });
  const change = (part: Partial<Wanted>) => setWanted((before) => ({ ...before, ...part }));
  const choices = templates.value ?? [];
  const captured = choices.find(({ name, type }) => type === "snapshot" && name === wanted.template);
  const create = async () => {
    const capsule = await service.create(wanted);
    fleet.changed(capsule);
    goTo({ page: "capsule", id: capsule.id, tab: "terminal" });
  };
  return (
    <FormDialog title="New capsule" confirm="Create" onConfirm={create} onClose={onClose}>
      <Field label="Template" hint="What it starts from: a built-in image, or the snapshot of a capsule.">
        {(ties) => (
          <select
            {...ties}
            value={wanted.template}
            onChange={(event) => change({ template: event.currentTarget.value })}
          >
            {!choices.some(({ name }) => name === wanted.template) && <option>{wanted.template}</option>}
            {choices.map(({ name, type }) => (
              <option key={`${type}/${name}`} value={name}>
                {name}
                {type === "snapshot" ? " (snapshot)" : ""}
              </option>
            ))}
          </select>
        )}
      </Field>
      {captured !== undefined ? (
        <p class="notice">
          A snapshot brings its own size: {cpus(captured.vcpus ?? usual.vcpus)},{" "}
          {memory(captured.memoryMb ?? usual.memoryMb)}.
        </p>
      ) : (
        <div class="fields">
          <Field label="Virtual CPUs" hint={limits && `1 to ${limits.vcpus_max}`}>
            {(ties) => (
              <input
                {...ties}
                type="number"
                required
                min={1}
                max={limits?.vcpus_max}
                value={wanted.vcpus}
                onInput={(event) => change({ vcpus: event.currentTarget.valueAsNumber })}
              />
            )}
          </Field>
          <Field
            label="Memory, MiB"
            hint={limits && `${limits.memory_min_mb} to ${limits.memory_max_mb.toLocaleString("en")}`}
          >
            {(ties) => (
              <input
                {...ties}
                type="number"
                required
                min={limits?.memory_min_mb}
                max={limits?.memory_max_mb}
                value={wanted.memoryMb}
                onInput={(event) => change({ memoryMb: event.currentTarget.valueAsNumber })}
              />
            )}
          </Field>
        </div>
      )}
      <Field
        label="Pause when idle"
        hint="Without a command for that long it is paused: nothing is lost, and it costs nothing until it is resumed."
      >
        {(ties) => (
          <select
            {...ties}
            value={wanted.timeoutSec}
            onChange={(event) => change({ timeoutSec: Number(event.currentTarget.value) })}
          >
            {pauses.map((seconds) => (
              <option key={seconds} value={seconds}>
                {seconds === 0 ? "Never" : `After ${duration(seconds)}`}
              </option>
            ))}
          </select>
        )}
      </Field>
    </FormDialog>
  );
}
