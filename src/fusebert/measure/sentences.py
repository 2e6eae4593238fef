"""Sentences to compare models on where the user gives no texts: of all lengths, with names, numbers and questions."""

SENTENCES = (
    "Yes.",
    "Thank you for the quick reply!",
    "The train to the coast leaves at 7:45 from platform nine.",
    "Is there a pharmacy near the station that is open on Sundays?",
    "She sold her old piano and bought a bicycle instead.",
    "Sales fell by 3.2 percent in the third quarter, to 1,480 million euros, the company said on Tuesday.",
    "I would not recommend this hotel: the room was cold, the staff rude, and breakfast ended at eight.",
    "A light, funny and surprisingly touching film about two brothers who inherit a lighthouse.",
    "error: cannot open file 'settings.json' (permission denied)",
    "The committee will meet again in March to discuss the budget for the new library, which has grown twice.",
    "Water boils at a lower temperature in the mountains because the pressure of the air is lower there.",
    "Who wrote the letter that was found behind the clock?",
    "Delivery: 3 to 5 working days. Returns are free within 30 days of purchase.",
    "Two men were arrested on Friday after a boat with no lights was seen near the harbour.",
    "Police arrested two men on Friday near the harbour, where a boat had been seen without lights.",
    "To reset the device, hold the left button for ten seconds until the lamp blinks blue; then let go.",
    "He promised to call, and, to everyone's surprise, he did.",
    "The recipe asks for 250 g of flour, two eggs, a pinch of salt and as much patience as you have.",
    "https://example.org/docs/index.html?page=2",
    "After a long winter, the first ships reached the island in May with mail, oranges, a doctor and a new bell for "
    "the church, which had been silent since the fire of the year before.",
    "Patients who slept less than six hours were more likely to report headaches; the effect was small.",
    "My order number is 4471-B. I was charged twice. Please refund one of the payments.",
    "No refunds.",
    "The bridge, built in 1891 and closed for repairs in 2019, will open to cyclists this summer.",
)
