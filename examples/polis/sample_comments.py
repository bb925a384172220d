"""The comments of the sample conversation, and how likely each of its three groups is to agree with them.

The town and its people are fictional. The groups: people who want a centre for walking and cycling, people
who need the car to get there or live from customers who do, and people who want what is there to be looked after
first. The three numbers are shares of agreement, in this order.
"""

TITLE = "What should become of the centre of Millbrook?"

COMMENTS: tuple[tuple[str, float, float, float], ...] = (
    # buses
    (
        "The last bus leaves at half past seven. Run buses until eleven at least on Fridays and Saturdays.",
        0.9,
        0.82,
        0.86,
    ),
    ("One ticket for bus and train would get more people to leave the car at home.", 0.92, 0.66, 0.8),
    ("Buses should be free for everybody under eighteen.", 0.86, 0.38, 0.57),
    ("Give buses a lane of their own on Station Road, even if cars wait longer.", 0.88, 0.09, 0.41),
    ("A small electric bus should go round the centre and the hospital every ten minutes.", 0.83, 0.7, 0.25),
    ("The bus stop at the hospital needs a shelter and a bench.", 0.93, 0.9, 0.95),
    ("Nobody in the villages can live without a car, and no bus timetable will change that.", 0.16, 0.89, 0.58),
    # cycling
    ("A separate cycle path for children who cycle to school should come before anything else.", 0.93, 0.13, 0.4),
    ("Cyclists ride on the pavement because cycling on the road is too dangerous.", 0.84, 0.35, 0.5),
    ("Nobody uses the cycle paths in winter. Cyclists get too much of our money.", 0.06, 0.84, 0.55),
    ("Bicycles need covered and safe stands at the station.", 0.94, 0.56, 0.7),
    ("Parcels in the old town should come by cargo bicycle and not by van.", 0.77, 0.12, 0.3),
    ("Cyclists who ride their bicycle through the pedestrian street should be fined.", 0.15, 0.45, 0.93),
    # cars and parking
    ("Close Mill Street to cars at weekends.", 0.9, 0.11, 0.36),
    ("Without car parking in front of the door many of us would have to give up.", 0.1, 0.93, 0.47),
    ("The first half hour of parking in the centre should be free.", 0.25, 0.93, 0.6),
    ("Turn the square into a green place with trees and benches, where cars stand now.", 0.93, 0.16, 0.45),
    ("Residents should get parking permits for their cars before commuters do.", 0.6, 0.62, 0.9),
    ("Build a large car park behind the station instead of taking parking spaces away.", 0.22, 0.88, 0.38),
    ("Cars should drive thirty everywhere in the centre.", 0.91, 0.26, 0.62),
    ("Parking a car in the centre should cost more than it does.", 0.8, 0.05, 0.24),
    ("People with disabilities must be able to park their car close to the doctor.", 0.91, 0.95, 0.94),
    ("Cars and lorries that only pass through should be sent round by the ring road.", 0.85, 0.63, 0.84),
    ("Speed traps for drivers are there to make money, and make no car slower.", 0.15, 0.79, 0.45),
    ("Charging points for electric cars belong in every car park of the town.", 0.76, 0.75, 0.17),
    # trees, square, river
    ("Plant trees along Station Road. In summer the heat there is unbearable.", 0.95, 0.63, 0.82),
    ("The square needs a fountain, and benches in the shade of trees.", 0.94, 0.77, 0.87),
    ("Open the green river bank between the mill and the bridge to walkers.", 0.92, 0.81, 0.85),
    ("The river bank and its old trees should be left to nature.", 0.4, 0.25, 0.88),
    ("New trees are pointless as long as nobody waters the old ones.", 0.2, 0.3, 0.9),
    ("A playground under the trees of the square would bring families back.", 0.88, 0.7, 0.4),
    # shops and market
    ("The weekly market with its shops and stalls should be twice a week.", 0.8, 0.82, 0.35),
    ("High rents are what kills the shops, not the internet.", 0.76, 0.4, 0.62),
    ("The town should rent empty shops to young businesses for little money.", 0.83, 0.76, 0.45),
    ("Shops should be open on four Sundays a year.", 0.55, 0.85, 0.1),
    ("Shops that lose customers during building work should be paid for it.", 0.55, 0.95, 0.71),
    ("More cafés and small shops with tables outside would bring customers back.", 0.9, 0.82, 0.15),
    # looking after what is there
    ("Repair the broken pavements first. My mother fell twice this year.", 0.5, 0.52, 0.97),
    ("The public toilets at the bus station are a disgrace. Clean them every day.", 0.86, 0.85, 0.96),
    (
        "The broken street lamps in Chapel Lane should have been repaired months ago.",
        0.83,
        0.78,
        0.95,
    ),
    ("Repair the potholes in the side streets before anything else in the street is dug up.", 0.25, 0.55, 0.96),
    ("Clean the streets and empty the bins on Sundays too.", 0.74, 0.77, 0.93),
    ("The library, which is shut on Saturdays, should be clean, repaired and open.", 0.89, 0.69, 0.87),
    # noise and night
    ("Loud music at night should end at ten. People sleep here.", 0.18, 0.2, 0.93),
    ("Young people need a place where they may be loud at night.", 0.85, 0.72, 0.12),
    ("More police on foot at night would help against noise and fights.", 0.4, 0.5, 0.92),
    ("Cameras would make me feel safer at night.", 0.12, 0.3, 0.86),
    # housing
    ("Empty flats on the upper floors should be lived in again.", 0.93, 0.85, 0.88),
    ("Build affordable flats and houses on the site of the old dairy.", 0.88, 0.53, 0.7),
    ("No new house should have more than four floors of flats.", 0.25, 0.25, 0.92),
    ("Holiday flats should be limited so that people from here find a flat to live in.", 0.81, 0.41, 0.79),
    # money and how it is decided
    ("The council should show what each plan costs before it asks us.", 0.83, 0.91, 0.95),
    ("The council should borrow money for these plans now, because they only get dearer.", 0.72, 0.5, 0.05),
    ("The council should try each plan for six months before it spends money on it.", 0.88, 0.5, 0.75),
    ("The council has made its plans already, and asks us for show.", 0.25, 0.75, 0.72),
    ("The council should ask people from the villages about its plans, too.", 0.71, 0.92, 0.55),
)

KEPT_OUT: tuple[str, ...] = (
    "Great deals on phone covers, see my page!",
    "The mayor is an idiot.",
    "test",
)
