// Asks a server everything that the tests look at, with both official clients, and prints one JSON object.
import { TypeSafeClient, noul, choice, score } from "@typesafe-ai/sdk";
import OpenAI from "openai";

const base = process.argv[2];
const seen = {};
const failure = async (promise) => {
  try {
    await promise;
    return null;
  } catch (error) {
    return { name: error.constructor.name, status: error.status, message: error.message, code: error.code, param: error.param };
  }
};

const typesafe = new TypeSafeClient({ baseURL: base, apiKey: "local" });
const questions = {
  refund: noul("Does the customer want money back?"),
  team: choice("Which team?", { billing: "Payments", technical: null }),
  anger: score("How angry?", ["Calm", "Frustrated", "Very angry"]),
};
seen.systemOne = await typesafe.systemOne({ state: "I was charged twice.", questions });
seen.models = (await typesafe.models.list()).map((model) => model.name);
seen.unknownModel = await failure(typesafe.systemOne({ state: "x", questions, model: "nothing" }));
seen.nullState = await failure(typesafe.systemOne({ state: null, questions }));

const openai = new OpenAI({ baseURL: `${base}/v1`, apiKey: "local", maxRetries: 0 });
seen.decision = await openai.decisions.create({
  model: "gpt-6-luna",
  input: "I was charged twice.",
  questions: [
    { type: "predicate", name: "refund", instructions: "The customer wants money back." },
    { type: "choice", instructions: "Which team?", choices: [{ value: "billing" }, { value: true }] },
    { type: "score", name: "anger", instructions: "How angry?", levels: [{ label: "calm" }, { label: "angry" }] },
  ],
});
seen.requestId = seen.decision._request_id;
seen.openaiModels = (await openai.models.list()).data.map((model) => model.id);
seen.badDecision = await failure(openai.decisions.create({ model: "gpt-6-luna", input: "x", questions: [] }));
console.log(JSON.stringify(seen));
