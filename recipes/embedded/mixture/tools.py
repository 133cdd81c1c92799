# ruff: noqa: E501 - long lines of wording are data here
"""A catalogue of invented functions with requests that need them. Own work; no benchmark's functions are copied."""

from __future__ import annotations

import random
from typing import Any

CITIES = (
    "Lisbon",
    "Osaka",
    "Nairobi",
    "Austin",
    "Tallinn",
    "Quito",
    "Leeds",
    "Hanoi",
    "Perth",
    "Bergen",
    "Porto",
    "Accra",
)
NAMES = ("Mara", "Jonas", "Priya", "Tomas", "Aiko", "Bruno", "Lena", "Omar", "Ines", "Felix", "Zoe", "Karim")
THINGS = (
    "a lamp",
    "running shoes",
    "a tent",
    "headphones",
    "a kettle",
    "a jacket",
    "a desk",
    "a bicycle",
    "a novel",
    "a drill",
)
DAYS = ("tomorrow", "on Monday", "next Friday", "on 4 May", "this weekend", "on the 12th", "tonight", "in two weeks")
SYMBOLS = ("ACME", "ORB", "NTX", "VLT", "SOLA", "KRIX")
TOPICS = (
    "whales",
    "the French Revolution",
    "solar panels",
    "jazz",
    "black holes",
    "bread",
    "chess openings",
    "coral reefs",
)

# name | description | parameters | requests
CATALOGUE = """
weather.current|Get the present weather of a place.|city,units|What's the weather like in {city} right now?;Is it raining in {city}?;Tell me the current temperature in {city}.
weather.forecast|Forecast the weather for coming days.|city,days|Will it be sunny in {city} {day}?;Give me a 5 day weather outlook for {city}.;Should I expect snow in {city} {day}?
air_quality.lookup|Report the air pollution level of a place.|city|How polluted is the air in {city}?;Air quality index for {city} please
flights.search|Find flights between two places.|origin,destination,date|Find me a flight from {city} to {city2} {day}.;Which planes go to {city2} {day}?;Look up airfares {city} - {city2}.
flights.book|Book a seat on a chosen flight.|flight_number,passenger|Book flight LX{n} for {name}.;Reserve a seat on the LX{n} for me.
flights.status|Tell whether a flight is delayed or on time.|flight_number|Is flight LX{n} on time?;Has LX{n} landed already?
hotel.search|Search hotel rooms in a city.|city,check_in,nights|I need a hotel in {city} {day} for {n} nights.;Show me places to stay in {city}.
hotel.cancel|Cancel a hotel booking.|booking_id|Please cancel my hotel reservation {n}.;I no longer need the room, drop booking {n}.
restaurant.find|Find restaurants by cuisine and place.|city,cuisine|Where can I eat Thai food in {city}?;Good pizza places in {city}?
restaurant.reserve|Reserve a table at a restaurant.|restaurant,time,people|Book a table for {n} at Luigi's {day}.;Can you get us a dinner reservation {day} at eight?
taxi.order|Order a taxi to an address.|pickup,dropoff|Get me a cab to the airport.;I need a ride from the station to Hill Road {n}.
route.plan|Give directions between two places.|origin,destination,mode|How do I get from {city} to {city2} by car?;Directions to the nearest station, please.
distance.between|Compute the distance between two places.|from,to|How far is {city} from {city2}?;What's the distance {city} to {city2} in km?
traffic.report|Report traffic jams on a route.|route|Is there much traffic on the way to {city}?;Any jams on the A{n}?
calendar.create_event|Add an event to the calendar.|title,date,time|Put a dentist visit {day} at 3 in my calendar.;Schedule a meeting with {name} {day}.
calendar.list_events|List events of a day.|date|What do I have {day}?;Am I free {day}?;Show my appointments.
calendar.delete_event|Remove an event from the calendar.|event_id|Cancel my meeting with {name}.;Delete the appointment {day}.
reminder.set|Set a reminder for a time.|text,time|Remind me to water the plants {day}.;Don't let me forget to call {name} {day}.
alarm.set|Set an alarm clock.|time|Wake me up at 6:{n}.;Set an alarm for seven.
alarm.cancel|Switch off an alarm that was set.|alarm_id|Turn off tomorrow's alarm.;Cancel the 6 o'clock alarm.
timer.start|Start a countdown timer.|minutes|Start a {n} minute timer.;Count down {n} minutes for the eggs.
email.send|Send an email.|to,subject,body|Email {name} that I'll be late.;Write to {name} and attach the report.
email.search|Search the mailbox.|query|Find the mail from {name} about the contract.;Did {name} write to me last week?
message.send_sms|Send a text message to a phone.|to,text|Text {name} that I'm on my way.;Send an SMS to {name}: see you {day}.
call.start|Call a contact by phone.|contact|Call {name}.;Ring {name} on the mobile.
contacts.lookup|Find the details of a contact.|name|What's {name}'s phone number?;Give me the address of {name}.
translate.text|Translate text to another language.|text,target|How do you say 'good evening' in Portuguese?;Translate this letter to German.
dictionary.define|Define a word.|word|What does 'ephemeral' mean?;Define serendipity.
thesaurus.synonyms|List words with the same meaning.|word|Another word for 'quick'?;Give me synonyms of brave.
spelling.check|Check the spelling of a text.|text|Is 'accomodate' spelled right?;Proofread this sentence for typos.
summary.create|Summarise a long text.|text,length|Summarise this article in three lines.;Give me the gist of the report.
wiki.search|Look up an encyclopedia article.|topic|Tell me about {topic}.;Who discovered {topic}?;I'd like to read up on {topic}.
news.headlines|Get today's news.|topic,country|What's in the news about {topic}?;Today's headlines please.
sports.score|Get the result of a match.|team,date|Who won the game yesterday?;What was the score of the {city} match?
sports.schedule|Get the dates of coming matches.|team|When does {city} play next?;Fixture list of the {city} team?
stock.price|Get the price of a share.|symbol|What's {symbol} trading at?;Current price of {symbol} stock?
stock.history|Get past prices of a share.|symbol,from,to|How did {symbol} do over the last year?;Show me the {symbol} chart since January.
stock.buy|Place an order to buy shares.|symbol,quantity|Buy {n} shares of {symbol}.;I want to invest in {n} {symbol}.
currency.convert|Convert an amount between currencies.|amount,from,to|How much is {n} euros in yen?;Convert {n} dollars to pounds.
crypto.price|Get the price of a cryptocurrency.|coin|How much is a bitcoin now?;Ether price?
loan.payment|Compute the monthly payment of a loan.|principal,rate,years|What would I pay each month on a {n}0000 loan over 20 years?;Mortgage instalment for {n}0000 at 3%?
interest.compound|Compute compound interest.|principal,rate,years|What will {n}00 grow to at 4% in 10 years?;Future value of {n}000 saved at 5%?
tax.estimate|Estimate income tax.|income,country|How much tax do I owe on {n}0000 a year?;Estimate my income tax.
bank.balance|Show the balance of an account.|account|How much money is in my savings account?;What's my balance?
bank.transfer|Send money to someone.|to,amount|Transfer {n} to {name}.;Pay {name} {n} euros.
bank.freeze_card|Block a bank card.|card_id|I lost my debit card, block it!;Freeze my card please, it was stolen.
invoice.create|Write an invoice for a customer.|customer,amount|Bill {name} {n} for the repair.;Make an invoice of {n} euros for {name}.
order.track|Tell where an order is.|order_id|Where is my parcel {n}?;Has order {n} shipped?
order.cancel|Cancel an order that has not shipped.|order_id|I want to cancel order {n}.;Stop my purchase {n}, I changed my mind.
order.return|Start the return of a product.|order_id,reason|{thing} arrived broken, I want to send it back.;How do I return {thing}?
product.search|Search products in the shop.|query,max_price|Show me {thing} under {n} euros.;Do you sell {thing}?
product.reviews|Get reviews of a product.|product|What do buyers say about {thing}?;Is {thing} any good? Show ratings.
cart.add|Put a product in the basket.|product,quantity|Add {thing} to my basket.;Put {n} of {thing} in the cart.
coupon.apply|Apply a discount code.|code|Use the code SAVE{n}.;I have a voucher for ten percent off.
music.play|Play a song, album or artist.|title,artist|Play some jazz.;Put on the new album by {name}.
music.add_to_playlist|Add a song to a playlist.|song,playlist|Add this tune to my running list.;Save that song in my favourites.
movie.showtimes|List film showings at cinemas.|city,film|When is the new film on in {city}?;What's playing at the cinema {day}?
movie.recommend|Recommend films by taste.|genre|Suggest a comedy to watch.;What film should I see {day}?
book.search|Find books by title, author or topic.|query|Find books about {topic}.;Which novels did {name} write?
recipe.find|Find recipes by ingredient.|ingredients|What can I cook with leeks and eggs?;A recipe for lentil soup please
nutrition.info|Give calories and nutrients of a food.|food|How many calories are in an avocado?;Is rice high in protein?
fitness.log_workout|Record an exercise session.|activity,minutes|I ran for {n} minutes, log it.;Record my swim this morning.
health.bmi|Compute the body mass index.|height,weight|I'm 180 cm and {n} kg, what's my BMI?;Work out my body mass index.
doctor.book|Make a doctor's appointment.|speciality,date|I need to see a dermatologist {day}.;Get me a doctor's visit {day}.
pharmacy.nearest|Find a pharmacy nearby.|location|Where can I buy medicine around here?;Closest chemist to {city} centre?
lights.set|Switch or dim the lights of a room.|room,brightness|Turn off the kitchen lights.;Make the bedroom darker.
thermostat.set|Set the heating temperature.|degrees|Make it 21 degrees in here.;It's too cold, turn up the heating.
door.lock|Lock or unlock a door.|door,state|Lock the front door.;Did I leave the garage open? Close it.
vacuum.start|Start the robot vacuum cleaner.|room|Hoover the living room.;Have the robot clean the floor.
camera.snapshot|Take a picture with a security camera.|camera|Show me who is at the door.;Take a picture of the driveway.
math.solve_quadratic|Solve a quadratic equation.|a,b,c|Find the roots of x^2 - {n}x + 6.;Solve 2x^2 + 3x = {n}.
math.factorial|Compute a factorial.|n|What's {n} factorial?;Compute {n}!
math.gcd|Find the greatest common divisor.|a,b|Greatest common divisor of {n} and 36?;What's the largest number dividing both {n} and 84?
math.derivative|Differentiate a function.|expression|Derivative of x^3 + {n}x?;What's the slope of sin(x) at {n}?
math.integrate|Integrate a function over an interval.|expression,from,to|Area under x^2 from 0 to {n}?;Integrate exp(x) between 0 and {n}.
geometry.circle_area|Compute the area of a circle.|radius|Area of a circle with radius {n}?;How large is a disc {n} cm across?
geometry.triangle_area|Compute the area of a triangle.|base,height|Area of a triangle with base {n} and height 4?;How big is a triangle of base {n}?
statistics.mean|Compute the mean of numbers.|values|Average of 3, 9 and {n}?;What's the mean of these marks: {n}, 12, 15?
statistics.regression|Fit a straight line to data.|x,y|Fit a trend line through my sales.;Run a linear regression of price on size.
statistics.std|Compute the standard deviation.|values|How spread out are 4, 8, {n}?;Standard deviation of these readings?
random.number|Draw a random number.|low,high|Pick a number between 1 and {n}.;Roll a die.
unit.convert|Convert between units of measure.|value,from,to|How many miles are {n} km?;Convert {n} pounds to kilograms.
time.zone|Tell the time in another place.|city|What time is it in {city}?;When it's noon in {city}, what time is it in {city2}?
date.difference|Count days between dates.|from,to|How many days until {day}?;Days between 3 March and 9 June?
holiday.list|List public holidays.|country,year|Is {day} a public holiday?;Which bank holidays are left this year?
physics.speed|Compute speed from distance and time.|distance,time|How fast is 100 m in {n} seconds?;Speed of a car that goes {n} km in an hour?
physics.gravity_force|Compute the gravitational force between masses.|m1,m2,distance|How strongly do two {n} kg balls attract each other?;Gravitational pull between {n} kg and 5 kg?
chemistry.molar_mass|Compute the molar mass of a compound.|formula|Molar mass of H2SO4?;How heavy is one mole of glucose?
chemistry.balance|Balance a chemical equation.|equation|Balance Fe + O2 -> Fe2O3.;Make this reaction equation even: H2 + O2.
biology.dna_transcribe|Transcribe DNA to RNA.|sequence|Transcribe ATTGC to RNA.;Which mRNA comes from TACG?
genetics.punnett|Predict traits of offspring.|parent1,parent2|Chance of blue eyes if both parents are Bb?;Cross Aa with aa.
history.event|Look up when something happened.|event|When did the Berlin wall fall?;What year was {topic} first described?
country.capital|Name the capital of a country.|country|What's the capital of Kenya?;Capital city of Peru?
population.lookup|Get the population of a place.|place,year|How many people live in {city}?;Population of {city} last year?
law.case_search|Search court cases.|query,court|Find rulings about tenancy disputes.;Any precedents on patent {n}?
patent.search|Search patents.|query|Are there patents on folding {thing}?;Look up patent {n}.
job.search|Find open jobs.|title,city|Any nurse jobs in {city}?;Find me work as a welder.
resume.parse|Read a CV into fields.|file|Extract the skills from this CV.;Parse {name}'s resume.
ticket.create|Open a support ticket.|title,priority|My screen is flickering, file a ticket.;Report that the printer is down.
ticket.status|Tell the state of a support ticket.|ticket_id|What happened to my ticket {n}?;Is incident {n} solved?
user.reset_password|Reset a user's password.|user|I forgot my password.;{name} can't log in, reset the password.
user.delete_account|Delete a user account.|user|Close my account for good.;Remove the profile of {name}.
user.create|Register a new user.|name,email|Sign up {name}.;Open an account for our new colleague {name}.
auth.get_token|Get an access token from a username and password.|username,password|Log me in, user {name}, password hunter{n}.;Authenticate with my credentials first.
database.query|Run an SQL query.|sql|Count the customers in {city} in our database.;Which rows have status open?
database.backup|Back up a database.|name|Save a copy of the production database.;Make a backup before the upgrade.
file.read|Read a file.|path|Open notes{n}.txt.;What's in the config file?
file.delete|Delete a file.|path|Remove old_log{n}.txt.;Erase the draft folder.
code.run|Run a piece of code.|language,source|Execute this Python script.;Run my unit tests.
code.format|Format source code.|source|Tidy the indentation of this code.;Run the formatter over main.py.
git.commit|Commit changes to a repository.|message|Commit my changes with the message 'fix'.;Save this state in git.
server.restart|Restart a server.|host|Reboot web{n}.;The api server hangs, restart it.
server.metrics|Get load and memory of a server.|host|How busy is web{n}?;CPU usage of the database machine?
image.resize|Change the size of an image.|file,width|Make this photo {n}00 pixels wide.;Shrink logo.png.
image.generate|Create an image from a description.|prompt|Draw a cat on a skateboard.;Make a picture of {topic}.
speech.transcribe|Turn speech into text.|file|Type out this voice memo.;Transcribe the meeting recording.
speech.say|Read a text aloud.|text|Read me this page.;Say 'welcome' out loud.
sentiment.analyse|Tell whether a text is positive or negative.|text|Are these reviews mostly happy?;Is this comment positive?
game.dice_probability|Compute chances of dice rolls.|dice,target|Chance of two sixes?;Odds of rolling {n} with three dice?
chess.best_move|Suggest a chess move.|position|What should white play here?;Best reply to e4?
lottery.results|Get lottery numbers.|date|What were the lottery numbers {day}?;Did I win the draw?
horoscope.daily|Give the horoscope of a sign.|sign|What do the stars say for Leo?;My horoscope please, I'm a Libra.
joke.tell|Tell a joke.|topic|Make me laugh.;Tell me something funny about {topic}.
parking.find|Find free parking.|location|Where can I park near {city} hall?;Free parking spots around here?
car.rent|Rent a car.|city,days|I'd like to hire a car in {city} for {n} days.;Rent me a van {day}.
car.service|Book a car service.|model,date|My car needs an oil change {day}.;Book the yearly inspection.
fuel.price|Get fuel prices.|city|How much is petrol in {city}?;Cheapest diesel around here?
train.timetable|Give train times.|from,to|When is the next train to {city}?;Trains from {city} to {city2} {day}?
event.tickets|Buy tickets for an event.|event,quantity|Two tickets for the concert {day}.;Get me seats for the {city} match.
insurance.claim|File an insurance claim.|policy,event|A pipe burst, I want to claim it.;My car was hit, start a claim on policy {n}.
insurance.quote|Give a price for insurance.|type,value|What would it cost to insure {thing}?;Home insurance quote please
house.search|Search homes for sale or rent.|city,max_price|Two bedroom flats in {city}?;Houses under {n}00000 in {city}.
house.valuation|Estimate the price of a home.|address|What's my house at Hill Road {n} worth?;Value my flat.
school.find|Find schools.|city|Primary schools in {city}?;Which schools are near us?
plant.identify|Name a plant from a picture.|image|What flower is this?;Identify the tree in my photo.
star.position|Tell where a star or planet is.|body,time|Where is Mars {day}?;When does Venus rise?
tide.table|Give tide times.|place|When is high tide in {city}?;Is the sea out {day}?
earthquake.recent|List recent earthquakes.|region|Any quakes near {city} lately?;Was that an earthquake?
"""


class Tool:
    """A function and requests for it."""

    def __init__(self, line: str) -> None:
        self.name, self.description, parameters, requests = line.split("|")
        self.parameters = parameters.split(",")
        self.requests = [text for text in requests.split(";") if text]


TOOLS = [Tool(line) for line in CATALOGUE.strip().splitlines()]


def request_for(rng: random.Random, tool: Tool) -> str:
    """One request that needs the tool."""
    city, city2 = rng.sample(CITIES, 2)
    text = rng.choice(tool.requests).format(
        city=city, city2=city2, name=rng.choice(NAMES), thing=rng.choice(THINGS), day=rng.choice(DAYS),
        n=rng.randint(2, 99), symbol=rng.choice(SYMBOLS), topic=rng.choice(TOPICS),
    )  # fmt: skip
    return rng.choice(("", "", "", "Hi, ", "Hello! ", "Please help: ", "Quick one. ")) + text


def styled(rng: random.Random, name: str, style: str) -> str:
    """A function name in one of the usual styles."""
    parts = name.replace(".", "_").split("_")
    if style == "snake":
        return "_".join(parts)
    if style == "camel":
        return parts[0] + "".join(part.title() for part in parts[1:])
    if style == "pascal":
        return (
            "".join(part.title() for part in reversed(parts)) if rng.random() < 0.3 else "".join(map(str.title, parts))
        )
    return name


def schema_of(rng: random.Random, name: str, description: str, parameters: list[str]) -> dict[str, Any]:
    """A function schema in one of the usual shapes."""
    if not parameters or rng.random() < 0.4:
        return {"name": name, "description": description}
    kinds: dict[str, Any] = {key: {"type": rng.choice(("string", "integer", "number"))} for key in parameters}
    if rng.random() < 0.4:
        kinds = {key: {**kind, "description": f"The {key.replace('_', ' ')}."} for key, kind in kinds.items()}
    shape = {"type": rng.choice(("dict", "object")), "properties": kinds, "required": parameters[:1]}
    return {
        "name": name,
        "description": description,
        rng.choice(("parameters", "parameters", "input_parameters")): shape,
    }
