// Questions to a worker. Of questions about the same topic only the newest is asked and answered.

export class Superseded extends Error {}

export class Engine {
  #worker = null;
  #waiting = []; // questions that the worker has not been sent
  #open = null; // the question that it works on
  #number = 0;

  constructor(onStage = () => {}, onFailure = () => {}) {
    this.onStage = onStage;
    this.onFailure = onFailure;
  }

  /** Start Python now rather than at the first question. */
  start() {
    if (this.#worker) return;
    this.#worker = new Worker("worker.js", { type: "module" });
    this.#worker.addEventListener("message", ({ data }) => this.#heard(data));
    this.#worker.addEventListener("error", (event) => this.onFailure(event.message));
  }

  /** The answer to a question; rejects with Superseded where a newer one of its topic came. */
  ask(question, topic = null) {
    this.start();
    return new Promise((resolve, reject) => {
      if (topic !== null) {
        for (const old of this.#waiting.filter((each) => each.topic === topic)) old.drop();
        this.#waiting = this.#waiting.filter((each) => each.topic !== topic);
        if (this.#open?.topic === topic) this.#open.drop();
      }
      const drop = () => reject(new Superseded());
      this.#waiting.push({ id: ++this.#number, question, topic, resolve, drop });
      this.#next();
    });
  }

  #next() {
    if (this.#open || this.#waiting.length === 0) return;
    this.#open = this.#waiting.shift();
    this.#worker.postMessage({ id: this.#open.id, question: JSON.stringify(this.#open.question) });
  }

  #heard(data) {
    if (data.stage) this.onStage(data.stage);
    if (data.failed) this.onFailure(data.failed);
    if (data.id === undefined || data.id !== this.#open?.id) return;
    const { resolve } = this.#open;
    this.#open = null;
    resolve(JSON.parse(data.answer));
    this.#next();
  }
}
