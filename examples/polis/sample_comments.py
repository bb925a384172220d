"""The comments of the sample conversation, and how likely each of its three groups is to agree with them.

The town is made up, and so is everybody in it. The groups: people who want a centre for walking and cycling, people
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
    ("A separated cycle path from the station to the school should come before anything else.", 0.93, 0.13, 0.4),
    ("Cyclists ride on the pavement because the road is too dangerous for them.", 0.84, 0.35, 0.5),
    ("Cycle paths stand empty in winter. The money should go into roads.", 0.06, 0.84, 0.55),
    ("We need covered, safe parking for bicycles at the station.", 0.94, 0.56, 0.7),
    ("Cargo bikes should do the deliveries in the old town instead of vans.", 0.77, 0.12, 0.3),
    ("Riding a bicycle through the pedestrian street should be fined properly.", 0.15, 0.45, 0.93),
    # cars and parking
    ("Close Mill Street to cars at weekends.", 0.9, 0.11, 0.36),
    ("Without parking in front of the shops the shops will close.", 0.1, 0.93, 0.47),
    ("The first half hour of parking in the centre should be free.", 0.25, 0.93, 0.6),
    ("Turn the car park on the square into a place with trees and benches.", 0.93, 0.16, 0.45),
    ("Residents should get parking permits before commuters do.", 0.6, 0.62, 0.9),
    ("Build a multi-storey car park behind the station instead of taking spaces away.", 0.22, 0.88, 0.38),
    ("Thirty kilometres an hour everywhere in the centre.", 0.91, 0.26, 0.62),
    ("Parking should cost more, and the money should pay for buses.", 0.8, 0.05, 0.24),
    ("People with disabilities must be able to park close to the doctor, whatever else is decided.", 0.91, 0.95, 0.94),
    ("Through traffic should be sent round the town by the ring road.", 0.85, 0.63, 0.84),
    ("Speed cameras are there to make money, not to make streets safe.", 0.15, 0.79, 0.45),
    ("Charging points for electric cars belong in every car park of the town.", 0.76, 0.75, 0.17),
    # trees, square, river
    ("Plant trees along Station Road. In summer the heat there is unbearable.", 0.95, 0.63, 0.82),
    ("The square needs a drinking fountain and places to sit in the shade.", 0.94, 0.77, 0.87),
    ("Open the path along the river from the mill to the bridge.", 0.92, 0.81, 0.85),
    ("The river bank should be left to nature and not be built up with terraces.", 0.4, 0.25, 0.88),
    ("New trees are pointless as long as nobody waters the old ones.", 0.2, 0.3, 0.9),
    ("A playground in the middle of the centre would bring families back.", 0.88, 0.7, 0.4),
    # shops and market
    ("The weekly market should be twice a week.", 0.8, 0.82, 0.35),
    ("Rents are what kills the shops, not parking and not the internet.", 0.76, 0.4, 0.62),
    ("The town should rent empty shops to young businesses for little money.", 0.83, 0.76, 0.45),
    ("Shops should be open on four Sundays a year.", 0.55, 0.85, 0.1),
    ("During any building work the shops must be reachable, and be paid for what they lose.", 0.55, 0.95, 0.71),
    ("More cafés with tables outside would make the centre lively.", 0.9, 0.82, 0.15),
    # looking after what is there
    ("Repair the pavements before you plan anything new. My mother fell twice this year.", 0.5, 0.52, 0.97),
    ("The public toilets at the bus station are a disgrace. Clean them every day.", 0.86, 0.85, 0.96),
    (
        "Street lamps in Chapel Lane have been broken for months, and I am afraid to walk there at night.",
        0.83,
        0.78,
        0.95,
    ),
    ("Potholes in the side streets should be filled before money goes into the square.", 0.25, 0.55, 0.96),
    ("Empty the bins on Sundays too.", 0.74, 0.77, 0.93),
    ("The library should be open on Saturdays.", 0.89, 0.69, 0.87),
    # noise and night
    ("Music outside should end at ten. People live here.", 0.18, 0.2, 0.93),
    ("Young people need a place where they may be loud.", 0.85, 0.72, 0.12),
    ("More police on foot in the evening would help more than cameras.", 0.4, 0.5, 0.92),
    ("Cameras on the square would make me feel safer.", 0.12, 0.3, 0.86),
    # housing
    ("Flats above the shops should be lived in again instead of standing empty.", 0.93, 0.85, 0.88),
    ("Build affordable flats on the old dairy site, not another supermarket.", 0.88, 0.53, 0.7),
    ("No building in the centre should have more than four floors.", 0.25, 0.25, 0.92),
    ("Holiday flats should be limited so that people from here find a home.", 0.81, 0.41, 0.79),
    # money and how it is decided
    ("Show us what each plan costs before we are asked whether we want it.", 0.83, 0.91, 0.95),
    ("The town should borrow money now, because building will only get dearer.", 0.72, 0.5, 0.05),
    ("Try changes for six months with paint and planters before building anything.", 0.88, 0.5, 0.75),
    ("The council has made up its mind already, and asking us is for show.", 0.25, 0.75, 0.72),
    ("People from the villages use the centre too and should have a say.", 0.71, 0.92, 0.55),
)

KEPT_OUT: tuple[str, ...] = (
    "Great deals on phone covers, see my page!",
    "The mayor is an idiot.",
    "test",
)
